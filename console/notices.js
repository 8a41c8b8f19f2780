// Short messages below the page, and what the last change can be undone by.

import { signal } from "./vendor/ui.js";

/** `{text, tone, undo}` or null. */
export const notice = signal(null);

const SHOWN_MS = 15_000;
let timer = 0;

/** Shows a message. The function `undo` stays at the key `u` until the next one. */
export function tell(text, { tone = "good", undo = null } = {}) {
  clearTimeout(timer);
  notice.value = { text, tone, undo };
  if (tone === "good") timer = setTimeout(dismiss, SHOWN_MS);
}

export function dismiss() {
  notice.value = null;
}

/** Runs once. */
export async function undo() {
  const run = notice.peek()?.undo;
  if (!run) return;
  dismiss();
  await run();
}
