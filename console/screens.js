// The menu, and which module draws which screen. A screen is `{title, view(), keys?(), enter?(), close?()}`.

import { session } from "./api.js";
import { drafts } from "./drafts.js";
import { KINDS, kindOf, wordsOf } from "./kinds.js";
import { t } from "./texts.js";

const fixed = (name, letter, group, needs = () => true) => ({ path: [name], title: t.screens[name], go: letter, group, needs });
const stored = () => session.value.mode !== "file";

/** The entries of the menu, in its order. */
export const MENU = [
  fixed("overview", "o", "watch"),
  fixed("explain", "x", "watch", () => session.value.features.includes("explain")),
  fixed("price", "p", "watch"),
  fixed("live", "l", "watch", () => session.value.can_tail),
  fixed("draft", "f", "configure", drafts),
  ...KINDS.map((kind) => ({ path: [kind.list], title: wordsOf(kind).many, go: kind.go, group: "configure", kind, needs: () => true })),
  fixed("streaming", "w", "operate"),
  fixed("records", "d", "operate"),
  fixed("nodes", "n", "operate"),
  fixed("environments", "e", "operate", () => session.value.can_environments),
  fixed("history", "h", "operate", stored),
  fixed("lab", "a", "operate", () => session.value.can_lab),
];

const SCREENS = {
  overview: () => import("./screens/overview.js"),
  explain: () => import("./screens/explain.js"),
  price: () => import("./screens/price.js"),
  live: () => import("./screens/live.js"),
  streaming: () => import("./screens/streaming.js"),
  records: () => import("./screens/records.js"),
  nodes: () => import("./screens/nodes.js"),
  environments: () => import("./screens/environments.js"),
  lab: () => import("./screens/lab.js"),
  draft: () => import("./screens/draft.js"),
  history: () => import("./screens/history.js"),
};

/** Opens the screen of a path. */
export async function open(path) {
  const [name = "overview", ...rest] = path;
  const kind = kindOf(name === "new" ? rest[0] : name);
  if (kind && drafts()) await (await import("./maker.js")).loadMaker();
  if (kind && (rest.length || name === "new")) {
    const { open: openDetail } = await import("./detail.js");
    return openDetail(kind, name === "new" ? null : rest.join("/"));
  }
  if (kind) return (await import("./list.js")).open(kind);
  const module = SCREENS[name] ?? SCREENS.overview;
  return (await module()).open(rest);
}
