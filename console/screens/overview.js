// How the gateway is, now and within the last hour.

import { call, has, revision, session } from "../api.js";
import { validity } from "../columns.js";
import { mayChange } from "../drafts.js";
import { ago, bytes, number, span, time } from "../format.js";
import { kindOf } from "../kinds.js";
import { frame } from "../live.js";
import { loaded } from "../load.js";
import { tell } from "../notices.js";
import { badge, diagnostic, heading, problem, prose, waiting } from "../parts.js";
import { href, route, setQuery } from "../router.js";
import { t } from "../texts.js";
import { effect, html, nothing, signal } from "../vendor/ui.js";

const STATUS_EVERY_MS = 5000;
const words = t.overview;

export async function open() {
  const status = loaded((abort) => call("weir/v1/status", { abort }), STATUS_EVERY_MS);
  const changes = loaded((abort) => call("apisix/admin/history?count=8&brief=true", { abort }));
  const certificates = loaded((abort) => call("weir/v1/certificates", { abort }));
  const busiest = loaded((abort) => call("weir/v1/metrics/history?by=route", { abort }));
  const figures = curves();
  const stored = session.peek().mode !== "file";
  const stops = [effect(() => {
    void revision.value;
    status.load();
    if (stored) changes.load();
    if (has("certificates")) certificates.load();
  })];
  if (has("metrics_history")) {
    busiest.load();
    figures.start();
  }
  return {
    title: t.screens.overview,
    view: () => html`${heading(t.screens.overview, has("metrics_history") ? figures.ranges() : nothing, subtitle(status.data))}
      ${problem(status.error)}
      ${has("events") || has("metrics_history") ? numbers(figures) : nothing}
      ${has("metrics_history") ? figures.view() : nothing}
      <div class="cards">
        ${warnings(status.data)}
        ${endpoints(status)}
        ${stored ? lastChanges(changes) : nothing}
        ${has("certificates") ? certificateList(certificates) : nothing}
        ${has("metrics_history") ? busiestRoutes(busiest) : nothing}
      </div>`,
    close: () => {
      figures.stop();
      stops.forEach((stop) => stop());
      [status, changes, certificates, busiest].forEach((part) => part.close());
    },
  };
}

const subtitle = (status) => html`<p class="muted">${status
  ? html`${session.value.node ?? ""} · ${words.version(status.version)} · ${words.since(span(status.uptime_seconds * 1000))} · ${words.state(status.state)}` : html`&nbsp;`}</p>`;

/** The last value of a series, streamed or read. */
function numbers(figures) {
  const now = frame.value?.values ?? figures.last();
  const rate = now.requests_per_second ? (100 * (now.errors_per_second ?? 0)) / now.requests_per_second : 0;
  const figure = (title, value, below, tone = "") => html`<div class="figure"><span>${title}</span><b class=${tone}>${value}</b><span>${below}</span></div>`;
  return html`<div class="figures">
    ${figure(words.requests, number(now.requests_per_second), words.perSecond)}
    ${figure(words.errors, now.requests_per_second === undefined ? "–" : `${number(rate)} %`, words.percentOf, rate >= 1 ? "bad" : "")}
    ${figure(words.latency, `${number(now.p50_ms)} ms`, words.median(number(now.p99_ms)))}
    ${figure(words.cpu, number(now.cpu_cores), words.cores)}
    ${figure(words.memory, bytes(now.memory_bytes), words.resident)}
    ${figure(words.connections, number(now.connections), words.toClients(number(now.upstream_connections)))}
  </div>`;
}

const PLOTS = [
  { title: words.plotRequests, names: ["requests_per_second"], series: [{ label: words.requests.toLowerCase(), token: "curve-1" }] },
  { title: words.plotErrors, names: ["errors_per_second"], series: [{ label: words.errors.toLowerCase(), token: "curve-2" }] },
  { title: words.plotLatency, names: ["p50_ms", "p99_ms"], series: [{ label: words.p50, token: "curve-1" }, { label: words.p99, token: "curve-3" }] },
];

/** Curves: read once, and continued with the frames of the stream. */
function curves() {
  const range = () => (route.value.query.range === "1h" ? "1h" : "10m");
  const state = signal(null);
  const ready = signal(null);
  const history = loaded(async (abort) => {
    const answer = await call(`weir/v1/metrics/history?range=${range()}`, { abort });
    const length = Math.max(0, ...Object.values(answer.series).map((list) => list.length));
    const times = Array.from({ length }, (_, index) => (answer.end_ms - (length - 1 - index) * answer.step_ms) / 1000);
    state.value = { times, series: answer.series, step: answer.step_ms };
  });
  let stops = [];
  const extend = () => {
    const now = frame.value;
    const before = state.peek();
    if (!now || !before || before.step !== now.step_ms || now.at_ms / 1000 <= before.times.at(-1)) return;
    const series = Object.fromEntries(Object.entries(before.series).map(([name, list]) => [name, [...list.slice(1), now.values[name] ?? null]]));
    state.value = { ...before, times: [...before.times.slice(1), now.at_ms / 1000], series };
  };
  return {
    start() {
      import("../plot.js").then((module) => (ready.value = module));
      let shown = null;
      stops = [
        effect(extend),
        effect(() => {
          const wanted = range();
          if (wanted !== shown) history.load();
          shown = wanted;
        }),
      ];
    },
    stop: () => stops.forEach((stop) => stop()),
    last: () => Object.fromEntries(Object.entries(state.value?.series ?? {}).map(([name, list]) => [name, list.at(-1)])),
    ranges: () => html`<div class="segments" role="group" aria-label=${words.range}>${[["10m", words.ten], ["1h", words.hour]].map(([name, title]) => html`<button
        aria-pressed=${String(range() === name)} @click=${() => setQuery({ range: name === "10m" ? "" : name })}>${title}</button>`)}</div>`,
    view: () => html`${problem(history.error)}
      <div class="plots">${PLOTS.map((plot) => curve(plot, state.value, ready.value))}</div>`,
  };
}

function curve({ title, names, series }, state, module) {
  const data = state ? [state.times, ...names.map((name) => state.series[name] ?? state.times.map(() => null))] : null;
  return html`<section><div class="title-row"><h2>${title}</h2></div>
    ${module && data ? html`<weir-plot .series=${series} .label=${title} .data=${data}></weir-plot>${module.values(data, series, title)}`
      : html`<div class="plot-place"></div><details class="values"><summary>${words.values}</summary></details>`}</section>`;
}

function warnings(status) {
  if (!status) return nothing;
  const all = [...(status.configuration?.warnings ?? []), ...(status.configuration?.last_error ? [status.configuration.last_error] : [])];
  if (all.length === 0) return nothing;
  return html`<section><h2>${words.warnings}</h2><ul class="findings warn scroll">${all.map((one) => (typeof one === "string" ? html`<li>${prose(one)}</li>` : diagnostic(one)))}</ul></section>`;
}

function endpoints(status) {
  const all = status.data?.upstreams ?? [];
  const totals = status.data?.endpoints;
  const list = all.flatMap((upstream) => upstream.endpoints.map((endpoint) => ({ upstream: upstream.name, ...endpoint })))
    .sort((one, other) => Number(one.up) - Number(other.up));
  return html`<section><div class="title-row"><h2>${words.endpoints}</h2>${totals ? html`<span class="muted">${words.upOf(totals.up, totals.endpoints)}</span>` : nothing}</div>
    ${!status.data ? waiting(3) : list.length === 0 ? html`<p class="muted">${words.noEndpoints}</p>` : html`<ul class="plain scroll" tabindex="0" aria-label=${words.endpoints}>${list.slice(0, 200).map(endpointRow)}</ul>`}</section>`;
}

const endpointRow = (endpoint) => html`<li><i class="dot ${endpoint.up ? "good" : "bad"}"></i><span class="mono">${endpoint.name}</span>
  ${owner(endpoint.upstream)}
  ${endpoint.up ? nothing : badge(words.down, "bad")}
  <span class="grow"></span>${endpoint.weight === 0 ? badge(words.drained) : mayChange() && !endpoint.upstream.includes("/")
    ? html`<button class="quiet" title=${words.takeOutTitle(endpoint.name)} @click=${() => takeOut(endpoint)}>${words.takeOut}</button>` : nothing}</li>`;

/** The resource with an upstream: `orders`, itself one, or `route/images`. */
function owner(name) {
  const [kind, ...id] = name.split("/");
  return id.length ? html`<a href=${href(`${kind}s`, id.join("/"))}>${name}</a>` : html`<a href=${href("upstreams", name)}>${name}</a>`;
}

/** Gives a node the weight 0, in the upstream of this name or id. */
async function takeOut(endpoint) {
  const { readOne, save } = await import("../changes.js");
  const kind = kindOf("upstreams");
  try {
    const before = await readOne(kind, endpoint.upstream);
    const { editable } = await import("../document.js");
    const value = editable(before.value);
    const { nodes } = value;
    const next = Array.isArray(nodes)
      ? nodes.map((node) => (`${node.host}:${node.port}` === endpoint.name ? { ...node, weight: 0 } : node))
      : { ...nodes, [endpoint.name]: 0 };
    if (!Array.isArray(nodes) && !(endpoint.name in (nodes ?? {}))) throw new Error(t.notThere(endpoint.name));
    await save(kind, before, { ...value, nodes: next });
  } catch (error) {
    tell(error.message, { tone: "bad" });
  }
}

const lastChanges = (changes) => html`<section><div class="title-row"><h2>${words.changesTitle}</h2><a href="#/history">${t.screens.history}</a></div>
  ${!changes.data ? (changes.error ? problem(changes.error) : waiting(3)) : changes.data.list.length === 0 ? html`<p class="muted">${words.noChanges}</p>`
    : html`<ul class="plain">${changes.data.list.map((entry) => html`<li><span class="mono">${changed(entry)}</span>
      <span class="muted">${t.historyOf.by(entry.author?.name ?? "–")}</span><span class="grow"></span><span class="muted" title=${time(entry.at_ms)}>${ago(entry.at_ms)}</span></li>`)}</ul>`}</section>`;

function changed(entry) {
  const [first, ...rest] = entry.changes ?? [];
  if (!first) return "–";
  const [list, ...id] = first.key.split("/");
  const name = first.action === "deleted" ? first.key : html`<a href=${href(list, id.join("/"))}>${first.key}</a>`;
  const others = rest.length + (entry.more ?? 0);
  return html`${name} ${t.historyOf.actions[first.action] ?? first.action}${others ? `, ${t.historyOf.more(others)}` : ""}`;
}

const certificateList = (certificates) => html`<section><h2>${words.certificates}</h2>
  ${!certificates.data ? (certificates.error ? problem(certificates.error) : waiting(2)) : certificates.data.list.length === 0 ? html`<p class="muted">${words.noCertificates}</p>`
    : html`<ul class="plain scroll" tabindex="0" aria-label=${words.certificates}>${certificates.data.list.slice(0, 100).map((one) => html`<li>${one.key ? html`<a href=${`#/${one.key}`}>${one.names[0]}</a>` : one.names[0]}
      ${one.names.length > 1 ? html`<span class="muted">+${one.names.length - 1}</span>` : nothing}<span class="grow"></span>${validity(one.not_after_ms, one.origin)}</li>`)}</ul>`}</section>`;

function busiestRoutes(busiest) {
  const rows = Object.entries(busiest.data?.routes ?? {}).map(([id, series]) => ({ id, rate: series.requests_per_second?.at(-1), errors: series.errors_per_second?.at(-1), p99: series.p99_ms?.at(-1) }))
    .sort((one, other) => (other.rate ?? 0) - (one.rate ?? 0)).slice(0, 8);
  if (busiest.data && rows.length === 0) return nothing;
  return html`<section><h2>${words.busiest}</h2>${busiest.data ? html`<ul class="plain">${rows.map((row) => html`<li><a href=${href("routes", row.id)}>${row.id}</a><span class="grow"></span>
    ${row.errors ? badge(`${number(row.errors)}/s 5xx`, "bad") : nothing}<span>${number(row.rate)}/s</span><span class="muted">${number(row.p99)} ms</span></li>`)}</ul>` : waiting(3)}</section>`;
}
