// Requests as they end.

import { lines } from "../api.js";
import { clock, number } from "../format.js";
import { badge, empty, heading, key, problem } from "../parts.js";
import { href, route, setQuery } from "../router.js";
import "../table.js";
import { t } from "../texts.js";
import { html, nothing, signal } from "../vendor/ui.js";

/** So many requests are kept; the oldest go. */
const KEPT = 2000;
/** New lines are drawn at most this often. */
const DRAW_MS = 250;
const SLOW_S = 1;
const words = t.tail;

export function open() {
  const requests = signal([]);
  const failure = signal(null);
  const isFollowing = signal(false);
  const shown = signal(null);
  let waiting = [];
  let running = null;
  let count = 0;
  const take = (line) => {
    count += 1;
    waiting.push({ ...line, id: count, tone: line.status >= 500 ? "bad" : "", text: JSON.stringify(line).toLowerCase() });
    if (waiting.length > KEPT) waiting = waiting.slice(-KEPT);
  };
  const timer = setInterval(() => {
    if (waiting.length === 0) return;
    requests.value = [...waiting.reverse(), ...requests.peek()].slice(0, KEPT);
    waiting = [];
  }, DRAW_MS);
  const start = async () => {
    const own = (running = new AbortController());
    isFollowing.value = true;
    failure.value = null;
    try {
      await lines("weir/v1/tail", take, own.signal);
    } catch (error) {
      if (!own.signal.aborted) failure.value = error;
    }
    if (own === running) isFollowing.value = false;
  };
  const stop = () => {
    running?.abort();
    running = null;
    isFollowing.value = false;
  };
  const toggle = () => (isFollowing.peek() ? stop() : start());
  start();

  const fits = (request) => {
    const { q = "", only } = route.value.query;
    if (only === "5xx" && request.status < 500) return false;
    if (only === "slow" && request.request_time < SLOW_S) return false;
    return q.toLowerCase().split(/\s+/).every((word) => request.text.includes(word));
  };
  const found = () => {
    const { q, only } = route.value.query;
    return q || only ? requests.value.filter(fits) : requests.value;
  };
  const only = (name, title) => html`<button aria-pressed=${String((route.value.query.only ?? "") === name)} @click=${() => setQuery({ only: name })}>${title}</button>`;
  const actions = () => html`
    <input id="tail-filter" type="search" class="filter" aria-label=${words.filter} placeholder=${words.filter} spellcheck="false" .value=${route.value.query.q ?? ""} @input=${(event) => setQuery({ q: event.target.value })}>
    <div class="segments" role="group" aria-label=${words.filter}>${only("", words.all)}${only("5xx", words.onlyErrors)}${only("slow", words.slow)}</div>
    <button @click=${() => (requests.value = [])}>${words.clear}</button>
    <button class=${isFollowing.value ? "" : "main"} @click=${toggle}>${isFollowing.value ? words.stop : words.start} ${key("f")}</button>`;

  return {
    title: t.screens.live,
    view: () => html`${heading(t.screens.live, actions(), html`<p class="muted">${words.about}</p>`)}
      ${problem(failure.value)}
      <div class="fill with-detail ${shown.value ? "open" : ""}">${found().length === 0 ? empty(words.emptyTitle, words.empty)
        : html`<weir-table id="table-live" .label=${t.screens.live} .rows=${found()} .columns=${COLUMNS} .onOpen=${(row) => (shown.value = row)}></weir-table>`}
        ${shown.value ? detail(shown.value, () => (shown.value = null)) : nothing}</div>`,
    keys: () => ({
      f: { run: toggle, label: t.keys.pause },
      "5": { run: () => setQuery({ only: route.peek().query.only === "5xx" ? "" : "5xx" }), label: t.keys.errors },
      "/": { run: () => document.getElementById("tail-filter").focus(), label: t.keys.search },
      Escape: { run: () => (shown.value = null), label: words.closeDetail },
    }),
    close: () => (clearInterval(timer), stop()),
  };
}

const tone = (status) => (status >= 500 ? "bad" : status >= 400 ? "warn" : "good");
const took = (seconds) => (seconds === undefined || seconds === "" ? "–" : `${number(1000 * Number(seconds))} ms`);

const COLUMNS = [
  { key: "time", title: words.columns.time, width: "76px", sort: null, cell: (row) => html`<span class="muted">${clock(Date.parse(row.time))}</span>` },
  { key: "status", title: words.columns.status, width: "56px", cell: (row) => badge(row.status, tone(row.status)) },
  { key: "method", title: words.columns.method, width: "64px", rank: 3, cell: (row) => row.method },
  { key: "url", title: words.columns.url, width: "minmax(120px, 4fr)", cell: (row) => html`<span class="mono">${row.host}${row.uri}</span>` },
  { key: "route", title: words.columns.route, width: "minmax(80px, 1fr)", rank: 3, cell: (row) => (row.route_id ? html`<a href=${href("routes", row.route_id)}>${row.route_id}</a>` : html`<span class="muted">${row.error_cause || "–"}</span>`) },
  { key: "upstream", title: words.columns.upstream, width: "minmax(110px, 1fr)", rank: 4, cell: (row) => html`<span class="mono muted">${row.upstream_addr || "–"}</span>` },
  { key: "took", title: words.columns.took, width: "80px", align: "right", cell: (row) => took(row.request_time) },
];

function detail(row, close) {
  const { text: _, tone: __, id: ___, ...line } = row;
  const spans = waterfall(line);
  const whole = Math.max(Number(line.request_time) || 0, 1e-6);
  return html`<aside class="request" aria-label=${words.detail}><div class="title-row"><h2>${badge(line.status, tone(line.status))} ${line.method} <span class="mono">${line.uri}</span></h2>
      <button class="quiet" aria-label=${words.closeDetail} @click=${close}>×</button></div>
    ${spans.length ? html`<h3>${words.waterfall}</h3><ul class="waterfall">${spans.map(({ name, from, seconds }) => html`<li><span>${name}</span>
      <span class="track"><i .style=${`left: ${(100 * from) / whole}%; width: ${Math.max(1, (100 * seconds) / whole)}%`}></i></span><span class="right">${took(seconds)}</span></li>`)}</ul>` : nothing}
    <dl class="pairs-list">${Object.entries(line).filter(([, value]) => value !== "").map(([name, value]) => html`<div><dt>${name}</dt><dd class="mono">${typeof value === "object" ? JSON.stringify(value) : value}</dd></div>`)}</dl></aside>`;
}

/** The last value of each stage, which is that of the attempt that was answered. */
function waterfall(line) {
  const last = (text) => Number(String(text ?? "").split(",").at(-1));
  const [connect, header, response] = [line.upstream_connect_time, line.upstream_header_time, line.upstream_response_time].map(last);
  if (!line.upstream_addr || Number.isNaN(response)) return [];
  const whole = Number(line.request_time);
  const begin = Math.max(0, whole - response);
  return [
    { name: words.stages.gateway, from: 0, seconds: begin },
    { name: words.stages.connect, from: begin, seconds: connect },
    { name: words.stages.header, from: begin + connect, seconds: Math.max(0, header - connect) },
    { name: words.stages.rest, from: begin + header, seconds: Math.max(0, response - header) },
  ];
}
