// The stream of figures: one for each tab, closed while the tab is hidden.

import { has, lines, revision, session } from "./api.js";
import { signal } from "./vendor/ui.js";

/** The last frame of figures, `{at_ms, values, …}`; null while there is no stream. */
export const frame = signal(null);

const AGAIN_MS = [1000, 2000, 5000, 10_000];
let running = null;
let timer = 0;
let failures = 0;

export function startLive() {
  if (running || !has("events") || document.hidden) return;
  running = new AbortController();
  read(running);
}

export function stopLive() {
  clearTimeout(timer);
  running?.abort();
  running = null;
  frame.value = null;
}

async function read(own) {
  try {
    await lines("weir/v1/events", receive, own.signal);
  } catch {
    // It is tried again below, until the session has ended.
  }
  if (own !== running) return;
  running = null;
  frame.value = null;
  failures += 1;
  if (session.peek()) timer = setTimeout(startLive, AGAIN_MS[Math.min(failures, AGAIN_MS.length) - 1]);
}

function receive(line) {
  if (line.type !== "frame") return;
  failures = 0;
  frame.value = line;
  const now = line.store_revision ?? line.revision;
  if (now !== null && now !== revision.peek()) revision.value = now;
}

document.addEventListener("visibilitychange", () => (document.hidden ? stopLive() : session.peek() && startLive()));
