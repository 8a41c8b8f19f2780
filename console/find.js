// The search box of the page. On the screen of a table it filters the table; elsewhere it lists what it has found.

import { go, href, route, setQuery } from "./router.js";
import { KINDS, wordsOf } from "./kinds.js";
import { refresh, search, table } from "./tables.js";
import { t } from "./texts.js";
import { computed, html, nothing, signal } from "./vendor/ui.js";

const SHOWN = 12;
const free = signal("");
const chosen = signal(0);
const isOpen = signal(false);

const onTable = computed(() => KINDS.some((kind) => kind.list === route.value.path[0]) && route.value.path.length === 1);

/** On a table, the text stands in the URL. */
export const find = {
  get value() {
    return onTable.value ? (route.value.query.q ?? "") : free.value;
  },
  set value(text) {
    if (onTable.peek()) setQuery({ q: text });
    else free.value = text;
  },
};

/** What was found: `{kind, row}`, first those whose id or name begins with the text. */
const found = computed(() => {
  const text = free.value.trim();
  if (!text) return [];
  const begins = (row) => row.id.startsWith(text) || row.name?.startsWith(text);
  const all = KINDS.flatMap((kind) => search(table(kind.list).value.rows ?? [], text).map((row) => ({ kind, row })));
  const [front, rest] = [all.filter(({ row }) => begins(row)), all.filter(({ row }) => !begins(row))];
  return [...front.filter(({ row }) => row.id === text), ...front.filter(({ row }) => row.id !== text), ...rest].slice(0, SHOWN);
});

export function focusSearch() {
  const box = document.getElementById("search");
  box.focus();
  box.select();
}

function opened() {
  isOpen.value = true;
  if (!onTable.peek()) for (const kind of KINDS) refresh(kind.list);
}

function leave(box) {
  isOpen.value = false;
  free.value = "";
  box.blur();
}

function pressed(event, enter) {
  const box = event.target;
  const { key } = event;
  if (key === "Escape") {
    if (onTable.peek()) {
      find.value = "";
      box.blur();
    } else leave(box);
  } else if (key === "ArrowDown" || key === "ArrowUp") {
    const length = Math.max(1, found.peek().length);
    chosen.value = (chosen.peek() + (key === "ArrowDown" ? 1 : length - 1)) % length;
    if (onTable.peek()) document.querySelector("weir-table")?.focus();
  } else if (key === "Enter") {
    const one = found.peek()[chosen.peek()];
    if (onTable.peek()) {
      // Before the table has come there is no row to open.
      if (enter?.()) box.blur();
    } else if (one) {
      go(one.kind.list, one.row.id);
      leave(box);
    }
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

const result = ({ kind, row }, index) => html`<a role="option" id="found-${index}" href=${href(kind.list, row.id)}
    aria-selected=${String(index === chosen.value)} @click=${() => leave(document.getElementById("search"))}>
  <b>${row.id}</b>${row.name && row.name !== row.id ? html` <span>${row.name}</span>` : nothing}
  <span class="muted mono">${row.uris?.[0] ?? row.snis?.[0] ?? ""}</span><span class="muted end">${wordsOf(kind).one}</span></a>`;

/** The box; `enter` is what Enter does on a table. */
export function searchBox(enter) {
  const list = onTable.value ? [] : found.value;
  const shown = isOpen.value && free.value.trim() !== "" && !onTable.value;
  const words = onTable.value ? t.filter(wordsOf(KINDS.find((kind) => kind.list === route.value.path[0])).many) : t.findAny;
  return html`<div class="search" @focusout=${(event) => event.currentTarget.contains(event.relatedTarget) || (isOpen.value = false)}>
    <input id="search" type="search" placeholder=${words} aria-label=${words} autocomplete="off" spellcheck="false" maxlength="256"
      role="combobox" aria-expanded=${String(shown)} aria-controls="found" aria-autocomplete="list"
      aria-activedescendant=${shown && list.length ? `found-${chosen.value}` : nothing} .value=${find.value}
      @focus=${opened} @input=${(event) => { chosen.value = 0; find.value = event.target.value; }} @keydown=${(event) => pressed(event, enter)}>
    <kbd aria-hidden="true">/</kbd>
    <div id="found" role="listbox" aria-label=${t.results} ?hidden=${!shown}>
      ${list.map(result)}
      ${shown && list.length === 0 ? html`<span role="option" aria-selected="false" class="muted">${t.nothingFound}</span>` : nothing}
    </div></div>`;
}
