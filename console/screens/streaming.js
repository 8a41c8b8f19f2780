// Hubs: their subscriptions, and events that could not be delivered.

import { call, session } from "../api.js";
import { ago, number, time } from "../format.js";
import { loaded } from "../load.js";
import { tell } from "../notices.js";
import { badge, empty, heading, key, problem, waiting } from "../parts.js";
import { href, route, setQuery } from "../router.js";
import "../table.js";
import { t } from "../texts.js";
import { html, nothing, signal } from "../vendor/ui.js";
import { streaming as words } from "./texts.js";

const COUNT = 1000;

export async function open([chosen]) {
  const hubs = loaded(async (abort) => (await call("weir/v1/hubs", { abort })).list.map((hub) => hub.id));
  await hubs.load();
  const id = chosen ?? hubs.data?.[0];
  const selected = signal(new Set());
  const read = (what) => loaded((abort) => call(`weir/v1/hubs/${encodeURIComponent(id)}/${what}?count=${COUNT}`, { abort }));
  const [subscriptions, letters] = [read("subscriptions"), read("dead-letters")];
  const load = () => Promise.all([subscriptions.load(), letters.load()]);
  if (id) load();
  const isDead = () => route.value.query.show === "dead";
  const rows = () => (letters.data?.list ?? []).map((one) => ({ ...one, id: `${one.event}-${one.subscription}` }));

  const replay = async () => {
    const wanted = rows().filter((row) => selected.peek().has(row.id));
    try {
      let replayed = 0;
      for (const { event, subscription } of wanted) {
        const answer = await call(`weir/v1/hubs/${encodeURIComponent(id)}/replay`, { method: "POST", body: { event, subscription } });
        replayed += answer.replayed;
      }
      selected.value = new Set();
      tell(words.replayed(replayed));
    } catch (error) {
      tell(error.message, { tone: "bad" });
    }
    await load();
  };
  const table = () => document.querySelector("weir-table");
  const mayReplay = () => session.value.role !== "viewer" && isDead();

  const body = () => {
    if (!hubs.data) return problem(hubs.error);
    if (!id) return empty(words.emptyTitle, words.empty);
    const now = isDead() ? letters : subscriptions;
    if (!now.data) return now.error ? problem(now.error) : waiting();
    const list = isDead() ? rows() : now.data.list;
    if (list.length === 0) return empty(isDead() ? words.noDead : words.noSubscriptions, isDead() ? words.noDeadAdvice : words.noSubscriptionsAdvice);
    return html`<weir-table id="table-streaming" .label=${isDead() ? words.dead : words.subscriptions} .rows=${list} .columns=${isDead() ? LETTERS : SUBSCRIPTIONS}
      .order=${route.value.query.sort ?? ""} .onOrder=${(sort) => setQuery({ sort })} .selected=${mayReplay() ? selected.value : null}
      .onSelect=${(set) => { selected.value = set; table()?.update(); }} .onOpen=${(row) => mayReplay() && table().toggle(row)}></weir-table>`;
  };
  const tab = (name, title, data) => html`<button aria-pressed=${String((route.value.query.show ?? "") === name)} @click=${() => setQuery({ show: name })}>${title}${data ? ` ${number(data.list.length)}` : ""}</button>`;
  const actions = () => html`
    ${mayReplay() && selected.value.size ? html`<button class="main" @click=${replay}>${words.replaySelected(selected.value.size)} ${key("Ctrl")}${key("↵")}</button>` : nothing}
    ${id ? html`<div class="segments" role="group" aria-label=${words.show}>${tab("", words.subscriptions, subscriptions.data)}${tab("dead", words.dead, letters.data)}</div>` : nothing}`;

  return {
    title: t.screens.streaming,
    view: () => html`${heading(t.screens.streaming, actions(), html`<p class="muted">${words.about}</p>`)}
      ${hubs.data?.length > 1 ? html`<nav class="tabs" aria-label=${words.hubs}>${hubs.data.map((one) => html`<a href=${href("streaming", one)} aria-current=${one === id ? "page" : nothing}>${one}</a>`)}</nav>` : nothing}
      <div class="fill">${body()}</div>`,
    keys: () => ({
      d: { run: () => setQuery({ show: isDead() ? "" : "dead" }), label: words.dead.toLowerCase() },
      j: { run: () => (table()?.focus(), table()?.move(1)), label: t.keys.down },
      k: { run: () => (table()?.focus(), table()?.move(-1)), label: t.keys.up },
      x: { run: () => table()?.toggle(table().current), label: t.keys.select },
      "Ctrl+Enter": { run: replay, label: words.replay.toLowerCase() },
    }),
    close: () => [hubs, subscriptions, letters].forEach((part) => part.close()),
  };
}

const columns = words.columns;
const when = (ms) => (ms ? html`<span title=${time(ms)}>${ago(ms)}</span>` : "–");

const SUBSCRIPTIONS = [
  { key: "id", title: columns.id, width: "64px", cell: (row) => row.id },
  { key: "callback", title: columns.callback, width: "minmax(140px, 3fr)", cell: (row) => html`<span class="mono">${row.callback}</span>` },
  { key: "topic", title: columns.topic, width: "minmax(100px, 2fr)", rank: 3, cell: (row) => html`<span class="mono">${row.topic}</span>` },
  { key: "state", title: columns.state, width: "100px", rank: 2, cell: (row) => badge(row.state) },
  { key: "pending", title: columns.pending, width: "80px", align: "right", cell: (row) => number(row.pending) },
  { key: "delivered", title: columns.delivered, width: "90px", rank: 3, align: "right", cell: (row) => number(row.delivered) },
  { key: "dead_letters", title: columns.dead, width: "90px", rank: 2, align: "right", cell: (row) => (row.dead_letters ? badge(number(row.dead_letters), "bad") : "0") },
  { key: "lease_ends_ms", title: columns.ends, width: "90px", rank: 4, align: "right", cell: (row) => when(row.lease_ends_ms) },
];

const LETTERS = [
  { key: "event", title: columns.event, width: "72px", cell: (row) => row.event },
  { key: "subscription", title: columns.subscription, width: "100px", rank: 3, cell: (row) => row.subscription },
  { key: "topic", title: columns.topic, width: "minmax(100px, 2fr)", rank: 3, cell: (row) => html`<span class="mono">${row.topic}</span>` },
  { key: "callback", title: columns.callback, width: "minmax(120px, 2fr)", rank: 3, cell: (row) => html`<span class="mono">${row.callback}</span>` },
  { key: "failure", title: columns.cause, width: "minmax(120px, 2fr)", cell: (row) => row.failure },
  { key: "attempts", title: columns.attempts, width: "80px", rank: 3, align: "right", cell: (row) => number(row.attempts) },
  { key: "at_ms", title: columns.at, width: "96px", rank: 2, align: "right", cell: (row) => when(row.at_ms) },
];
