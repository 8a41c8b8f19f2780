// Templates and signals.
export { html, svg, nothing, render } from "lit-html";
export { keyed } from "lit-html/directives/keyed.js";
export { live } from "lit-html/directives/live.js";
export { repeat } from "lit-html/directives/repeat.js";
export { computed, effect, signal, untracked } from "@preact/signals-core";
