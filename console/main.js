// The console begins here: the session, the shell, and the screen that the URL names.

import { isBack, resume, session } from "./api.js";
import { forgetDraft } from "./drafts.js";
import { focusSearch } from "./find.js";
import { isTyping, register, screenKeys } from "./keys.js";
import { startLive, stopLive } from "./live.js";
import { endLogIn, loginPage } from "./login.js";
import { undo } from "./notices.js";
import { problem } from "./parts.js";
import { go, route } from "./router.js";
import { forgetSchemas } from "./schemas.js";
import { MENU, open } from "./screens.js";
import { newPlace, shell, showHelp } from "./shell.js";
import { forget } from "./tables.js";
import { t } from "./texts.js";
import { effect, nothing, render, signal, untracked } from "./vendor/ui.js";

const screen = signal(null);
/** The fragment that the screen was opened for, without its query. */
const shownAt = signal("");
const failed = signal(null);
let place = "";

/** Opens the screen of the URL. A change of its query alone leaves the screen open. */
async function follow() {
  const { path } = route.value;
  const now = session.value ? path.join("/") : null;
  if (now === place) return;
  place = now;
  untracked(() => {
    screen.peek()?.close?.();
    screen.value = null;
  });
  if (now === null) return;
  try {
    const opened = await open(path);
    if (place !== now) return opened.close?.();
    shownAt.value = location.hash.split("?")[0];
    screen.value = opened;
    document.title = `${opened.title} · ${t.name}`;
    document.getElementById("content")?.scrollTo(0, 0);
    // Where a user types already, the focus stays.
    if (!isTyping()) opened.shown?.();
  } catch (error) {
    failed.value = error;
  }
}

function draw() {
  if (failed.value) return problem(failed.value);
  if (session.value === undefined) return nothing;
  if (session.value === null) return loginPage();
  return shell(screen.value, shownAt.value);
}

register({
  "/": { run: focusSearch, label: t.keys.search },
  "?": { run: showHelp, label: t.keys.help },
  u: { run: undo, label: t.keys.undo, needsScreen: true },
  n: { run: () => go(...newPlace()), label: t.keys.new_, needsScreen: true },
  ...Object.fromEntries(MENU.map((entry) => [`g ${entry.go}`, { run: () => go(...entry.path), label: t.keys.goTo(entry.title) }])),
});

effect(() => void follow());
effect(() => (screenKeys.value = screen.value && (screen.value.keys?.() ?? {})));
effect(() => {
  if (session.value) startLive();
  else {
    stopLive();
    forget();
    forgetSchemas();
    forgetDraft();
  }
});
effect(() => render(draw(), document.getElementById("app")));

(isBack() ? endLogIn() : resume()).catch((error) => {
  if (error.status !== 401) failed.value = error;
});

