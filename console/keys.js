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

/** What is pressed before its screen, or what the screen shows, has come is kept for it: so many keys, and for so long. */
const KEPT_KEYS = 64;
const KEPT_MS = 10_000;
let kept = [];
let coming = null;
let comingSince = 0;

/** `"screen"` or `"data"` is on its way, or nothing (null). */
export function awaits(what) {
  if (what && what !== coming) comingSince = performance.now();
  coming = what;
  // Not now: what changes while a page is drawn is drawn after that.
  if (!what && kept.length) queueMicrotask(pressAgain);
}

export function forgetKept() {
  kept = [];
}

function pressAgain() {
  const all = kept;
  kept = [];
  for (const event of all) press(event);
}

/** Does what the browser does with a key. */
function press({ key, ctrlKey, metaKey, shiftKey }) {
  const target = innermost() ?? document.body;
  const event = new KeyboardEvent("keydown", { key, ctrlKey, metaKey, shiftKey, bubbles: true, composed: true, cancelable: true });
  if (!target.dispatchEvent(event) || ctrlKey || metaKey || !target.matches("input:not([type=checkbox]), textarea")) return;
  if (key === "Enter") target.form?.requestSubmit();
  else if (key.length === 1) {
    target.setRangeText(key, target.selectionStart, target.selectionEnd, "end");
    target.dispatchEvent(new InputEvent("input", { bubbles: true, data: key, inputType: "insertText" }));
  }
}

/** Whether a key is for what is on its way. Its screen may have a field for texts; to data, only the keys of the screen belong. */
function isKept(event, own, pair) {
  if (!coming || kept.length >= KEPT_KEYS || performance.now() - comingSince > KEPT_MS) return false;
  const { target } = event;
  if (isField(focused())) return own === "Enter" && target.id === "search";
  if ((own === "Enter" || own === " ") && target.closest?.("a, button, summary, input")) return false;
  if (own.length > 1 && !["Enter", "Delete", "Ctrl+Enter"].includes(own)) return false;
  return coming === "screen" || kept.length > 0 || (own in screenKeys.peek() && !find(pair));
}

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
  const pair = !inField && event.timeStamp - firstAt < PAIR_MS ? `${first} ${own}` : "";
  if (isKept(event, own, pair)) {
    event.preventDefault();
    kept.push(event);
    return;
  }
  if (inField && !own.startsWith("Ctrl+") && event.key !== "Escape") return;
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

const find = (wanted) => (wanted && (screenKeys.peek()[wanted] ?? pageKeys.get(wanted))) || null;
const startsPair = (letter) => [...pageKeys.keys()].some((key) => key.startsWith(`${letter} `));
