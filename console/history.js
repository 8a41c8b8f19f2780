// Revisions: who changed what, and going back.

import { call, session } from "./api.js";
import { diff } from "./diff.js";
import { ago, time } from "./format.js";
import { loaded } from "./load.js";
import { tell } from "./notices.js";
import { empty, problem, waiting } from "./parts.js";
import { refreshAll } from "./tables.js";
import { t } from "./texts.js";
import { html, nothing, signal } from "./vendor/ui.js";

const PAGE = 50;

/** The history of a resource, or of all with `key` null. */
export function historyOf(key) {
  const chosen = signal(null);
  const shown = signal(PAGE);
  const list = loaded((abort) =>
    call(`apisix/admin/history?count=${shown.peek()}&brief=true${key ? `&only=true&key=${encodeURIComponent(key)}` : ""}`, { abort }));
  const one = loaded(async (abort) => {
    const number = chosen.peek();
    return number === null ? null : call(`apisix/admin/history/${number}`, { abort });
  });
  const back = loaded(async (abort) => {
    const number = chosen.peek();
    if (number === null || !session.peek().can_rollback) return null;
    return call(`apisix/admin/history/${number}/rollback?dry_run=true`, { method: "POST", abort });
  });

  const choose = (number) => {
    chosen.value = number;
    one.load();
    if (!key) back.load();
  };
  const step = (by) => {
    const revisions = list.data?.list ?? [];
    const at = revisions.findIndex((entry) => entry.revision === chosen.peek());
    const next = revisions[Math.max(0, Math.min(revisions.length - 1, at + by))];
    if (next) choose(next.revision);
  };
  /** Only a difference that is shown is gone back by. */
  const rollback = async () => {
    const number = chosen.peek();
    if (number === null || back.busy || back.error || !back.data?.changes?.length) return;
    const before = list.data?.revision;
    try {
      await call(`apisix/admin/history/${number}/rollback`, { method: "POST" });
      const undo = () => call(`apisix/admin/history/${before}/rollback`, { method: "POST" }).then(again, (error) => tell(error.message, { tone: "bad" }));
      tell(t.rolledBack(number), { undo });
      await again();
    } catch (error) {
      tell(error.message, { tone: "bad" });
    }
  };
  const again = async () => {
    await list.load();
    if (chosen.peek() !== null) choose(chosen.peek());
    await refreshAll();
  };
  list.load();

  const entry = (revision) => html`<li><button class="revision" aria-pressed=${String(revision.revision === chosen.value)} @click=${() => choose(revision.revision)}>
      <span><b>${revision.revision}</b> <span title=${time(revision.at_ms)}>${ago(revision.at_ms)}</span> <span class="muted">${t.historyOf.by(revision.author?.name ?? "–")}</span></span>
      ${revision.message ? html`<span>${revision.message}</span>` : nothing}
      ${key ? nothing : html`<span class="muted mono">${summary(revision)}</span>`}</button></li>`;

  const view = () => {
    if (list.error?.status === 404) return empty(t.historyOf.none, t.historyOf.noneAdvice);
    if (!list.data) return list.error ? problem(list.error) : waiting();
    const revisions = list.data.list;
    if (revisions.length === 0) return empty(t.historyOf.none, t.historyOf.empty);
    return html`<div class="split"><div><ol class="revisions">${revisions.map(entry)}</ol>
      ${revisions.length >= shown.value ? html`<button @click=${() => { shown.value += PAGE; list.load(); }}>${t.historyOf.older}</button>` : nothing}</div>
      <div class="revision-detail">${chosen.value === null ? html`<p class="muted">${t.historyOf.choose}</p>` : details()}</div></div>`;
  };

  const details = () => html`
    ${problem(one.error)}
    ${key ? nothing : preview()}
    ${one.data?.revision === chosen.value ? html`<h2>${t.historyOf.what(chosen.value)} <span class="muted">${time(one.data.at_ms)}</span></h2>
      ${one.data.changes.filter((change) => !key || change.key === key).map(changeView)}` : waiting(4)}`;

  const preview = () => {
    if (back.busy) return waiting(2);
    if (back.error) return problem(back.error);
    if (!back.data) return nothing;
    return html`<section class="rollback"><h2>${t.historyOf.preview(chosen.value)}</h2>
      ${back.data.changes.length ? html`<button class="main" @click=${rollback}>${t.historyOf.rollback}</button>${back.data.changes.map(changeView)}`
        : html`<p class="muted">${t.historyOf.nothingToDo}</p>`}</section>`;
  };

  return {
    view, step, rollback, load: again,
    close: () => [list, one, back].forEach((part) => part.close()),
  };
}

function summary(revision) {
  const [first, ...rest] = revision.changes ?? [];
  const others = rest.length + (revision.more ?? 0);
  return first ? `${first.key} ${t.historyOf.actions[first.action] ?? first.action}${others ? `, ${t.historyOf.more(others)}` : ""}` : "";
}

/** Members of one resource, before and after. */
export function changeView(change) {
  const side = (name) => Object.fromEntries((change.members ?? []).filter((member) => !WRITTEN.has(member.path) && member[name] !== null)
    .map((member) => [member.path, member[name]]));
  const isEmpty = (map) => Object.keys(map).length === 0;
  const [before, after] = [side("before"), side("after")];
  return html`<section><h3><span class="mono">${change.key}</span> <span class="muted">${t.historyOf.actions[change.action] ?? change.action}</span></h3>
    ${diff(isEmpty(before) ? undefined : before, isEmpty(after) ? undefined : after, change.key)}</section>`;
}

/** What the node writes itself. */
const WRITTEN = new Set(["create_time", "update_time"]);
