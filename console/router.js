// Where the reader is: all of it stands in the fragment of the URL, `#/routes/orders?tab=json`.

import { signal } from "./vendor/ui.js";

function parse(fragment) {
  const [path, query] = fragment.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decode), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

let shown = location.hash;
export const route = signal(parse(shown));
addEventListener("hashchange", follow);

function follow() {
  if (location.hash === shown) return;
  shown = location.hash;
  route.value = parse(shown);
}

/** The link to a place: `href("routes", "a/b", {tab: "json"})`. Members of the query that are empty are left out. */
export function href(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = kept.length ? `?${new URLSearchParams(kept)}` : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${text}`;
}

/** Goes to a place, which the browser's back button leaves again. The next key that is pressed is one for that place. */
export function go(...parts) {
  location.hash = href(...parts);
  follow();
}

/** Changes the query of this place, with an entry in the browser's history if `push` is true. */
export function setQuery(changes, push = false) {
  const here = route.peek();
  const next = href(...here.path, { ...here.query, ...changes });
  if (push) location.hash = next;
  else history.replaceState(null, "", next);
  follow();
}
