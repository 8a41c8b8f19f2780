// Data that is fetched. What was there stays until what replaces it has arrived whole.

import { signal } from "./vendor/ui.js";

/**
 * `read(abort)` fetches. The result has `data` (undefined before the first answer), `error` and `busy`, drawn again when they change;
 * `load()`, of which the newest wins; and `close()`. With `everyMs`, it loads again at this interval while the page is visible.
 */
export function loaded(read, everyMs) {
  const state = signal({ data: undefined, error: null, busy: true });
  let running = null;
  const load = async () => {
    running?.abort();
    const own = (running = new AbortController());
    state.value = { ...state.peek(), busy: true };
    try {
      const data = await read(own.signal);
      if (own === running) state.value = { data, error: null, busy: false };
    } catch (error) {
      if (own === running && !own.signal.aborted) state.value = { ...state.peek(), error, busy: false };
    }
  };
  const timer = everyMs ? setInterval(() => document.hidden || load(), everyMs) : null;
  return {
    get data() { return state.value.data; },
    get error() { return state.value.error; },
    get busy() { return state.value.busy; },
    load,
    close: () => (clearInterval(timer), running?.abort()),
  };
}
