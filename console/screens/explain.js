// Which route takes a request, and why.

import { call, has, session } from "../api.js";
import { reference } from "../columns.js";
import { number } from "../format.js";
import { leavingField } from "../keys.js";
import { loaded } from "../load.js";
import { badge, empty, heading, key, problem, prose, waiting } from "../parts.js";
import { href, route, setQuery } from "../router.js";
import { t } from "../texts.js";
import { effect, html, nothing, signal, untracked } from "../vendor/ui.js";

const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/** The request that the query describes. */
function request() {
  const { url, method = "GET", headers = "", from } = route.peek().query;
  const fields = headers.split("\n").map((line) => line.split(/:(.*)/s)).filter(([name]) => name?.trim());
  return {
    method, url: absolute(url), ...(from ? { from } : {}),
    ...(fields.length ? { headers: Object.fromEntries(fields.map(([name, value = ""]) => [name.trim(), value.trim()])) } : {}),
  };
}

/** A path alone is asked of this host. */
const absolute = (url) => (url.startsWith("/") ? `http://${location.hostname}${url}` : /^https?:/.test(url) ? url : `http://${url}`);

export function open() {
  const sent = signal(null);
  const answer = loaded((abort) => call("weir/v1/explain", { method: "POST", body: request(), abort }));
  const trace = loaded((abort) => call("weir/v1/trace", { method: "POST", body: sent.peek(), abort }));
  const ask = (event) => {
    event?.preventDefault();
    const url = document.getElementById("explain-url").value.trim();
    if (!url) return;
    // So that the next keys are not typed into it; `/` goes back to it.
    leavingField()();
    if (url === route.peek().query.url) answer.load();
    else setQuery({ url });
  };
  const again = () => document.getElementById("explain-url").select();
  const send = () => {
    if (!route.peek().query.url) return;
    sent.value = request();
    trace.load();
  };
  // Another request in the URL is asked for at once.
  let asked = null;
  const follow = effect(() => {
    const { url, method, headers, from } = route.value.query;
    const now = url ? JSON.stringify([url, method, headers, from]) : null;
    if (now === asked) return;
    asked = now;
    if (now) untracked(() => {
      sent.value = null;
      answer.load();
    });
  });

  const fields = () => {
    const { url = "", method = "GET", headers = "", from = "" } = route.value.query;
    const change = (name) => (event) => setQuery({ [name]: event.target.value });
    return html`<form class="ask" @submit=${ask}>
      <select aria-label=${t.explain.method} .value=${method} @change=${change("method")}>${METHODS.map((one) => html`<option ?selected=${one === method}>${one}</option>`)}</select>
      <input id="explain-url" type="text" inputmode="url" class="mono grow" aria-label=${t.explain.url} placeholder="https://shop.example.com/orders/1" autocomplete="off" spellcheck="false" .value=${url}>
      <button class="main">${t.explain.button} ${key("↵")}</button>
      <details><summary>${t.explain.more}</summary><div class="grid-2">
        <label>${t.explain.headers}<textarea rows="2" class="mono" spellcheck="false" .value=${headers} @change=${change("headers")}></textarea></label>
        <label>${t.explain.from}<input type="text" class="mono" autocomplete="off" .value=${from} @change=${change("from")}></label></div></details></form>`;
  };

  const body = () => {
    if (!route.value.query.url) return empty(t.explain.emptyTitle, t.explain.empty);
    if (answer.error) return problem(answer.error);
    if (!answer.data) return waiting();
    const found = answer.data;
    return html`${verdict(found)}
      ${has("trace") && session.value.can_trace ? html`<p><button title=${t.explain.sendTitle} @click=${send}>${t.explain.send} ${key("s")}</button></p>${response(sent.value, trace)}` : nothing}
      <div class="two-columns">
      <section><h2>${t.explain.candidates}</h2>${found.candidates.length ? candidates(found) : html`<p class="muted">${t.explain.noCandidates}</p>`}</section>
      <section><h2>${t.explain.plugins}</h2>${found.plugins.length ? chain(found) : html`<p class="muted">${t.explain.noPlugins}</p>`}
        ${found.knows_consumers ? html`<p class="muted">${t.explain.consumers}</p>` : nothing}
        ${found.nodes?.length ? endpoints(found) : nothing}</section></div>`;
  };

  return {
    title: t.screens.explain,
    shown: () => document.getElementById("explain-url")?.focus(),
    view: () => [heading(t.screens.explain, nothing, html`<p class="muted">${t.explain.about}</p>`), fields(), body()],
    keys: () => ({ "Ctrl+Enter": { run: ask, label: t.explain.button }, "/": { run: again, label: t.keys.url }, s: { run: send, label: t.keys.send } }),
    close: () => (follow(), answer.close(), trace.close()),
  };
}

const verdict = (found) => (found.route === null
  ? html`<div class="verdict bad"><b>${t.explain.none}</b><span>${t.explain.noneAdvice}</span></div>`
  : html`<div class="verdict good"><b><a href=${href("routes", found.route)}>${t.explain.chosen(found.route)}</a></b>
      ${found.upstream ? html`<span>→ ${reference(found.upstream)}</span>` : nothing}<span class="muted mono">${found.request}</span></div>`);

const candidates = (found) => html`<div class="wide-table" tabindex="0" role="region" aria-label=${t.explain.candidates}><table>
  <thead><tr><th>${t.explain.columns.route}</th><th>${t.explain.columns.host}</th><th>${t.explain.columns.uri}</th><th>${t.explain.columns.verdict}</th></tr></thead>
  <tbody>${found.candidates.map((one) => html`<tr class=${one.verdict === "chosen" ? "chosen" : ""}><td><a href=${href("routes", one.route)}>${one.route}</a></td>
    <td class="mono">${one.host ?? "*"}</td><td class="mono">${one.uri}</td><td>${one.verdict === "chosen" ? badge(one.reason, "good") : prose(one.reason)}${one.vars ? html` <code>${one.vars}</code>` : nothing}</td></tr>`)}</tbody></table></div>`;

const hasPrices = (found) => found.plugins.some((one) => one.price);

const chain = (found) => html`<div class="wide-table" tabindex="0" role="region" aria-label=${t.explain.plugins}><table>
  <thead><tr><th>${t.explain.columns.plugin}</th><th>${t.explain.columns.stage}</th><th class="right">${t.explain.columns.priority}</th><th>${t.explain.columns.source}</th>${hasPrices(found) ? html`<th class="right">${t.explain.columns.price}</th>` : nothing}</tr></thead>
  <tbody>${found.plugins.map((one) => html`<tr class=${one.off ? "off" : ""}><td><b>${one.name}</b> ${one.off ? badge(t.explain.off) : nothing}</td><td>${one.stage}</td>
    <td class="right">${one.priority}</td><td>${source(one.source)}</td>${hasPrices(found) ? html`<td class="right muted">${one.price ? `${number(one.price.us)} µs` : "–"}</td>` : nothing}</tr>`)}</tbody></table></div>`;

/** `route/r1` is a link to `routes/r1`. */
function source(text) {
  const [kind, ...id] = text.split("/");
  return reference(`${kind}s/${id.join("/")}`);
}

const endpoints = (found) => html`<h2>${t.explain.upstream}</h2><ul class="plain">${found.nodes.map((node) => html`<li><i class="dot ${node.up === false ? "bad" : "good"}"></i>
  <span class="mono">${node.address}</span> <span class="muted">${t.overview.weight(node.weight)}</span>${node.up === false ? badge(t.overview.down, "bad") : nothing}</li>`)}</ul>`;

function response(sent, trace) {
  if (!sent) return nothing;
  if (trace.error) return problem(trace.error);
  if (!trace.data || trace.busy) return waiting(3);
  const { status, headers = [], body, truncated, took_ms: took } = trace.data;
  if (status === null) return problem({ message: trace.data.error_msg });
  return html`<section><h2>${t.explain.response} ${badge(status, status < 400 ? "good" : "bad")} <span class="muted">${t.explain.took(number(took))}</span></h2>
    <pre class="block" tabindex="0" role="region" aria-label=${t.explain.response}>${headers.map(([name, value]) => `${name}: ${value}\n`)}
${body}</pre>${truncated ? html`<p class="muted">${t.explain.truncated}</p>` : nothing}</section>`;
}
