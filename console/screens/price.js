// What plugins cost on some of the requests, the dearest first.

import { call } from "../api.js";
import { number } from "../format.js";
import { loaded } from "../load.js";
import { badge, empty, heading, problem, waiting } from "../parts.js";
import { href, route, setQuery } from "../router.js";
import { t } from "../texts.js";
import { html, nothing } from "../vendor/ui.js";

const EVERY_MS = 10_000;
/** Below this number of measured calls, a price says little. */
const ENOUGH = 100;
const words = t.price;

export function open() {
  const policies = loaded((abort) => call("weir/v1/policies", { abort }), EVERY_MS);
  policies.load();
  return {
    title: t.screens.price,
    view: () => [heading(t.screens.price, by(), html`<p class="muted">${words.about} ${policies.data ? words.oneIn(policies.data.measured_one_in) : nothing}</p>`), body(policies)],
    close: policies.close,
  };
}

const isByPlugin = () => route.value.query.by === "plugin";

const by = () => html`<div class="segments" role="group" aria-label=${words.by}>
  <button aria-pressed=${String(!isByPlugin())} @click=${() => setQuery({ by: "" })}>${words.byRoute}</button>
  <button aria-pressed=${String(isByPlugin())} @click=${() => setQuery({ by: "plugin" })}>${words.byPlugin}</button></div>`;

function body(policies) {
  if (!policies.data) return policies.error ? problem(policies.error) : waiting();
  const routes = policies.data.routes.filter((one) => one.exchanges_measured > 0);
  if (routes.length === 0) return empty(words.emptyTitle, words.empty);
  return isByPlugin() ? pluginTable(routes) : html`<div class="chains">${sorted(routes).map(chain)}</div>`;
}

const sorted = (routes) => [...routes].sort((one, other) => other.cpu_ns_per_exchange - one.cpu_ns_per_exchange);
const micro = (ns) => `${number(ns / 1000)} µs`;
const unsure = (measured) => (measured < ENOUGH ? badge(words.unsure(measured), "warn") : nothing);

/** A request as a bar: each plugin, and the gateway itself. */
function chain(one) {
  const parts = one.policies.map((policy) => ({ name: policy.policy, share: policy.share_of_route_cpu, ns: policy.cpu_ns_per_call, waited: policy.waited_ns_per_call, measured: policy.calls_measured }))
    .sort((first, second) => second.ns - first.ns);
  const rest = Math.max(0, 1 - parts.reduce((sum, part) => sum + part.share, 0));
  return html`<section class="chain"><div class="title-row"><h2><a href=${href("routes", one.route)}>${one.route}</a></h2>
      <span>${unsure(one.exchanges_measured)} <b>${micro(one.cpu_ns_per_exchange)}</b> <span class="muted">${words.perRequest} · ${number(one.exchanges)} ${words.exchanges.toLowerCase()}</span></span></div>
    <div class="stack" aria-hidden="true">${parts.map((part, index) => html`<i class="part-${index % 4}" title=${part.name} .style=${`width: ${100 * part.share}%`}></i>`)}</div>
    <ul class="plain">${parts.map((part, index) => html`<li><i class="swatch part-${index % 4}"></i><b>${part.name}</b><span class="grow"></span>
        ${part.waited > 0 ? html`<span class="muted">${words.waits} ${micro(part.waited)}</span>` : nothing}
        <span>${micro(part.ns)}</span><span class="muted fixed">${number(100 * part.share)} %</span></li>`)}
      <li><i class="swatch"></i><span class="muted">${words.rest}</span><span class="grow"></span><span>${micro(rest * one.cpu_ns_per_exchange)}</span><span class="muted fixed">${number(100 * rest)} %</span></li></ul></section>`;
}

/** Each plugin over all routes. */
function pluginTable(routes) {
  const all = new Map();
  for (const one of routes) {
    for (const policy of one.policies) {
      const sum = all.get(policy.policy) ?? { name: policy.policy, seconds: 0, calls: 0, measured: 0, waited: 0 };
      sum.seconds += policy.cpu_seconds;
      sum.calls += policy.calls;
      sum.measured += policy.calls_measured;
      sum.waited += policy.waited_seconds;
      all.set(policy.policy, sum);
    }
  }
  const rows = [...all.values()].sort((one, other) => other.seconds - one.seconds);
  if (rows.length === 0) return empty(words.emptyTitle, words.noPlugins);
  return html`<div class="wide-table" tabindex="0" role="region" aria-label=${words.byPlugin}><table>
    <thead><tr><th>${words.plugin}</th><th class="right">${words.cpu}</th><th class="right">${words.total}</th><th class="right">${words.waits}</th><th class="right">${words.calls}</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr><td><b>${row.name}</b> ${unsure(row.measured)}</td><td class="right">${micro(row.calls ? (1e9 * row.seconds) / row.calls : 0)}</td>
      <td class="right">${number(row.seconds)} s</td><td class="right">${micro(row.calls ? (1e9 * row.waited) / row.calls : 0)}</td><td class="right">${number(row.measured)}</td></tr>`)}</tbody></table></div>`;
}
