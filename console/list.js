// The screen of a kind: its table, with search, order and what is done to several at once.

import { has, revision } from "./api.js";
import { removeAll } from "./changes.js";
import { cells } from "./columns.js";
import { draft, mayChange } from "./drafts.js";
import { count } from "./format.js";
import { wordsOf } from "./kinds.js";
import { maker } from "./maker.js";
import { empty, heading, key, problem, waiting } from "./parts.js";
import { go, href, route, setQuery } from "./router.js";
import { find } from "./find.js";
import { refresh, search, table } from "./tables.js";
import "./table.js";
import { t } from "./texts.js";
import { effect, html, nothing, signal } from "./vendor/ui.js";

export function open(kind) {
  const words = wordsOf(kind);
  const selected = signal(new Set());
  const columns = cells(kind);
  const own = () => document.getElementById(`table-${kind.list}`);
  const show = (row) => go(kind.list, row.id);
  // What a draft deletes is gone here; what it makes has no row yet.
  let lastDraft = { rows: null, operations: null, left: null };
  const remaining = () => {
    const { rows } = table(kind.list).value;
    const { operations } = draft.value;
    if (!rows || operations.length === 0) return rows;
    if (lastDraft.rows !== rows || lastDraft.operations !== operations) {
      lastDraft = { rows, operations, left: rows.filter((row) => maker.drafted(`${kind.list}/${row.id}`) !== null) };
    }
    return lastDraft.left;
  };
  const made = () => {
    const known = new Set((table(kind.list).value.rows ?? []).map((row) => `${kind.list}/${row.id}`));
    const keys = new Set(draft.value.operations.map((one) => one.put).filter((key) => key?.startsWith(`${kind.list}/`)));
    return [...keys].filter((key) => !known.has(key) && maker.drafted(key)).map((key) => key.slice(kind.list.length + 1));
  };
  let lastSearch = { rows: null, text: null, found: [] };
  const found = () => {
    const rows = remaining();
    const text = find.value;
    if (lastSearch.rows !== rows || lastSearch.text !== text) {
      lastSearch = { rows, text, found: rows ? search(rows, text) : [] };
    }
    return lastSearch.found;
  };
  // The store has changed: what changed is asked for, and the table swaps when it has come.
  const follow = effect(() => void (revision.value, refresh(kind.list)));

  const removeSelected = async () => {
    const ids = [...selected.peek()];
    if (ids.length && (await removeAll(kind, ids))) selected.value = new Set();
  };
  const mayWrite = mayChange;

  const actions = () => html`
    ${selected.value.size && mayWrite()
      ? html`<button class="danger" @click=${removeSelected}>${t.deleteSelected(selected.value.size)} ${key("Del")}</button>`
      : nothing}
    ${mayWrite() ? html`<a class="button main" href=${href("new", kind.list)}>${t.newOne(words.one)} ${key("n")}</a>` : nothing}`;

  const body = () => {
    const { error } = table(kind.list).value;
    const rows = remaining();
    if (!rows) return error ? problem(error) : waiting(12);
    if (rows.length === 0) return empty(t.noneYet(words.many), words.about, mayWrite() ? actions() : nothing);
    const shown = found();
    if (shown.length === 0) return empty(t.noMatch(words.many), t.noMatchAdvice, html`<button @click=${() => (find.value = "")}>${t.clearSearch} ${key("Esc")}</button>`);
    return html`${problem(error)}<weir-table id="table-${kind.list}" .label=${words.many} .rows=${shown} .columns=${columns}
      .order=${route.value.query.sort ?? "id"} .selected=${mayWrite() ? selected.value : null} .onOpen=${show}
      .onOrder=${(sort) => setQuery({ sort })} .onSelect=${(set) => { selected.value = set; own()?.update(); }}></weir-table>`;
  };

  const summary = () => {
    const rows = remaining();
    if (!rows) return nothing;
    const shown = found().length;
    const fresh = made();
    return html`${fresh.length ? html`<p class="note">${maker.words.inDraft("")} ${fresh.map((id) => html` <a href=${href(kind.list, id)}>${id}</a>`)}</p>` : nothing}
      <p class="muted">${shown === rows.length ? count(rows.length, words.one.toLowerCase(), words.many.toLowerCase()) : t.shownOf(shown, rows.length)}</p>`;
  };

  return {
    title: words.many,
    view: () => html`${heading(words.many, actions(), summary())}<div class="fill">${body()}</div>`,
    keys: () => ({
      j: { run: () => (own()?.focus({ preventScroll: true }), own()?.move(1)), label: t.keys.down },
      k: { run: () => (own()?.focus({ preventScroll: true }), own()?.move(-1)), label: t.keys.up },
      Enter: { run: () => own()?.current && show(own().current), label: t.keys.open },
      x: { run: () => own()?.toggle(own().current), label: t.keys.select },
      Delete: { run: removeSelected, label: t.keys.remove },
    }),
    /** Enter in the search box opens the first row. Returns whether there is one. */
    enter: () => Boolean(own()?.shown[0] && (show(own().shown[0]), true)),
    close: follow,
    feature: has("table"),
  };
}
