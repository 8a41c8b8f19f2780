// All revisions.

import { historyOf } from "../history.js";
import { heading } from "../parts.js";
import { t } from "../texts.js";

export function open() {
  const list = historyOf(null);
  return {
    title: t.screens.history,
    view: () => [heading(t.screens.history), list.view()],
    keys: () => ({
      j: { run: () => list.step(1), label: t.keys.down },
      k: { run: () => list.step(-1), label: t.keys.up },
      r: { run: list.rollback, label: t.keys.rollback },
      "Ctrl+Enter": { run: list.rollback, label: t.keys.rollback },
    }),
    close: list.close,
  };
}
