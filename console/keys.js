// The keyboard. A screen gives its own keys, which come before those of the page.

import { signal } from "./vendor/ui.js";

/** Keys of the screen: `{"e": {run, label}}`. `Ctrl+Enter` works in fields too; letters do not. Null while a screen is on its way. */
export const screenKeys = signal({});
const pageKeys = new Map();

/**
 * Keys that work everywhere. `g r` is typed one after the other. Those that do something to what is shown have `needsScreen`: while a
 * screen is on its way, a user who presses keys has not seen what they would do it to.
 */
export function register(keys) {
  for (const [name, key] of Object.entries(keys)) pageKeys.set(name, key);
}

export const allKeys = () => ({ page: Object.fromEntries(pageKeys), screen: screenKeys.value ?? {} });

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

/** Whether what is typed goes into a field. */
export const isTyping = () => isField(focused());

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
  const pair = !inField && event.timeStamp - firstAt < PAIR_MS ? `${first} ${own}` : "";
  first = "";
  const key = find(pair) ?? find(own);
  if (key) {
    event.preventDefault();
    key.run(event);
  } else if (startsPair(own)) {
    first = own;
    firstAt = event.timeStamp;
  } else if (event.key === "Escape" && inField) leavingField()();
});

function find(wanted) {
  const own = screenKeys.peek();
  const key = own?.[wanted] ?? pageKeys.get(wanted);
  return key && (own || !key.needsScreen) ? key : null;
}

const startsPair = (letter) => [...pageKeys.keys()].some((key) => key.startsWith(`${letter} `));
