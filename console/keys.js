// The keyboard. A screen gives its own keys, which come before those of the page.

import { signal } from "./vendor/ui.js";

/** Keys of the screen: `{"e": {run, label}}`. `Ctrl+Enter` works in fields too; letters do not. */
export const screenKeys = signal({});
const pageKeys = new Map();

/** Keys that work everywhere. `g r` is typed one after the other. */
export function register(keys) {
  for (const [name, key] of Object.entries(keys)) pageKeys.set(name, key);
}

export const allKeys = () => ({ page: Object.fromEntries(pageKeys), screen: screenKeys.value });

const PAIR_MS = 1500;
let first = "";
let firstAt = 0;

function name(event) {
  const modifier = event.ctrlKey || event.metaKey ? "Ctrl+" : "";
  return modifier + event.key;
}

const isField = (element) => element?.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable], weir-editor") ?? false;

/** Also in a shadow root. */
function focused() {
  const outer = document.activeElement;
  return outer?.tagName === "WEIR-EDITOR" ? outer : innermost();
}

const innermost = () => document.activeElement?.shadowRoot?.activeElement ?? document.activeElement;

/** A function that leaves the field with the focus, if it still has it then. */
export function leavingField() {
  const field = isField(focused()) && innermost();
  return () => field && field === innermost() && field.blur();
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.altKey || event.isComposing) return;
  const own = name(event);
  const inField = isField(focused());
  if (inField && !own.startsWith("Ctrl+") && event.key !== "Escape") return;
  const pair = !inField && Date.now() - firstAt < PAIR_MS ? `${first} ${own}` : "";
  first = "";
  const key = find(pair) ?? find(own);
  if (key) {
    event.preventDefault();
    key.run(event);
  } else if (startsPair(own)) {
    first = own;
    firstAt = Date.now();
  } else if (event.key === "Escape" && inField) leavingField()();
});

const find = (wanted) => (wanted && (screenKeys.peek()[wanted] ?? pageKeys.get(wanted))) || null;
const startsPair = (letter) => [...pageKeys.keys()].some((key) => key.startsWith(`${letter} `));
