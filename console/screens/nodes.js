// This node, and those that share its store.

import { call, session } from "../api.js";
import { ago, number, span, time } from "../format.js";
import { loaded } from "../load.js";
import { badge, heading, problem, waiting } from "../parts.js";
import { t } from "../texts.js";
import { html, nothing } from "../vendor/ui.js";
import { settings as set } from "./texts.js";

const EVERY_MS = 5000;
const words = t.nodes;

export function open() {
  const isShared = session.peek().mode === "etcd";
  const status = loaded((abort) => call("weir/v1/status", { abort }), EVERY_MS);
  const settings = loaded((abort) => call("weir/v1/settings", { abort }));
  const nodes = loaded((abort) => call("apisix/admin/nodes", { abort }), isShared ? EVERY_MS : 0);
  status.load();
  settings.load();
  if (isShared) nodes.load();
  return {
    title: t.screens.nodes,
    view: () => html`${heading(t.screens.nodes, nothing, html`<p class="muted">${isShared ? words.about : words.one}</p>`)}
      ${isShared ? others(nodes) : nothing}
      <div class="cards">${status.data ? [workers(status.data), configuration(status.data)] : problem(status.error) === nothing ? waiting() : problem(status.error)}
        ${settings.data ? inUse(settings.data) : problem(settings.error)}</div>
      ${settings.data ? pools(settings.data) : nothing}`,
    close: () => [status, settings, nodes].forEach((part) => part.close()),
  };
}

function others(nodes) {
  if (!nodes.data) return nodes.error ? problem(nodes.error) : waiting(3);
  return html`<div class="wide-table" tabindex="0" role="region" aria-label=${t.screens.nodes}><table>
    <thead><tr><th>${words.columns.node}</th><th>${words.columns.state}</th><th class="right">${words.columns.revision}</th><th>${words.columns.version}</th><th>${words.columns.started}</th><th>${words.columns.seen}</th></tr></thead>
    <tbody>${nodes.data.list.map((node) => html`<tr><td><b>${node.id}</b></td><td>${badge(node.in_step ? words.inStep : words.differs, node.in_step ? "good" : "warn")} ${node.set_aside?.length ? badge(words.setAside(node.set_aside.length), "warn") : nothing}</td>
      <td class="right">${node.revision}</td><td>${node.version}</td><td title=${time(node.started_ms)}>${ago(node.started_ms)}</td><td title=${time(node.told_ms)}>${ago(node.told_ms)}</td></tr>`)}</tbody></table></div>`;
}

const workers = (status) => html`<section><h2>${words.workers}</h2><table>
  <thead><tr><th>${words.worker}</th><th class="right">${words.columns.revision}</th><th class="right">${words.connections}</th><th class="right">${words.requests}</th></tr></thead>
  <tbody>${status.workers.map((worker, index) => html`<tr><td>${index + 1}</td><td class="right">${worker.revision}</td><td class="right">${number(worker.connections)}</td><td class="right">${number(worker.requests)}</td></tr>`)}</tbody></table></section>`;

function configuration(status) {
  const { configuration: own, limits } = status;
  const row = (title, value) => html`<div><dt>${title}</dt><dd>${value ?? "–"}</dd></div>`;
  return html`<section><h2>${words.configuration}</h2><dl class="pairs-list">
    ${row(words.columns.node, session.value.node)}${row(words.columns.state, status.state)}${row(words.columns.version, status.version)}
    ${row(words.running, span(status.uptime_seconds * 1000))}${row(words.source, own.source)}${row(words.columns.revision, own.revision)}
    ${row(words.loaded, time(own.loaded_at))}${row(words.published, `${number(own.publish_ms)} ms`)}
    ${row(words.reloads, `${number(own.reloads_ok)} · ${words.failed(own.reloads_failed)}`)}${row(words.files, number(limits?.open_files))}${row(words.ports, number(limits?.ports))}</dl></section>`;
}

/** Settings by the names that they have in the file. */
const inUse = (settings) => [[set.workers, settings.workers], [set.logs, settings.records]].map(([title, values]) => html`<section><h2>${title}</h2>
  <dl class="pairs-list">${Object.entries(values).map(([name, value]) => html`<div><dt class="mono">${name}</dt><dd>${value ?? "–"}</dd></div>`)}</dl></section>`);

function pools({ upstreams, more }) {
  if (upstreams.length === 0) return nothing;
  const row = (own) => html`<tr><td><b>${own.name}</b></td><td class="right">${number(own.endpoints)}</td><td class="right">${number(own.size)}</td><td class="right">${own.idle_timeout}</td>
    <td class="right">${number(own.requests)}</td><td class="right">${own.in_flight ?? "–"}</td><td class="right">${number(own.queue)}</td></tr>`;
  return html`<section class="pools"><h2>${set.pools}</h2><p class="muted">${set.about}</p><div class="wide-table" tabindex="0" role="region" aria-label=${set.pools}><table>
    <thead><tr><th>${set.upstream}</th>${[set.endpoints, set.size, set.idle, set.requests, set.inFlight, set.queue].map((title) => html`<th class="right">${title}</th>`)}</tr></thead>
    <tbody>${upstreams.map(row)}</tbody></table></div>${more ? html`<p class="note">${set.more(number(more))}</p>` : nothing}</section>`;
}
