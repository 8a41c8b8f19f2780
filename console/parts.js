// Small pieces that many screens draw.

import { t } from "./texts.js";
import { html, nothing } from "./vendor/ui.js";

/** A text with `code` in back-quotes. */
export function prose(text) {
  return String(text ?? "").split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

export const badge = (text, tone = "") => html`<span class="badge ${tone}">${text}</span>`;

export const labels = (map) =>
  map ? Object.entries(map).map(([name, value]) => html`<span class="label"><b>${name}</b>${value}</span>`) : nothing;

export const key = (text) => html`<kbd>${text}</kbd>`;

/** In place of a list without entries: what it is, and what to do next. */
export const empty = (title, text, action = nothing) =>
  html`<div class="empty"><h2>${title}</h2><p>${text}</p>${action}</div>`;

/** An answer that was refused, in the node's words. */
export function problem(error) {
  if (!error) return nothing;
  const text = error.message === "no_answer" ? t.noAnswer : error.message;
  return html`<div class="problem" role="alert">${prose(text)}
    ${error.diagnostics?.length ? html`<ul>${error.diagnostics.map(diagnostic)}</ul>` : nothing}</div>`;
}

export const diagnostic = (found) => html`<li>
  ${found.path || found.key ? html`<code class="place">${found.path ?? found.key}</code>` : nothing}
  <span>${prose(found.problem)}${found.advice ? html`; <span class="muted">${prose(found.advice)}</span>` : nothing}</span>
</li>`;

/** In place of what is being fetched. */
export const waiting = (rows = 6) =>
  html`<div class="waiting" role="status" aria-label=${t.loading}>${Array.from({ length: rows }, () => html`<i></i>`)}</div>`;

/** A screen's title row: the heading, and what can be done. */
export const heading = (title, actions = nothing, below = nothing) => html`
  <header class="heading"><div><h1 tabindex="-1">${title}</h1>${below}</div><div class="actions">${actions}</div></header>`;
