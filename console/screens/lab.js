// Results of the lab: those in the folder of the node, the table and the verdict of one, and what differs between two.

import { call } from "../api.js";
import { ago, bytes, number, time } from "../format.js";
import { loaded } from "../load.js";
import { badge, empty, heading, key, problem, prose, waiting } from "../parts.js";
import { go, href, route, setQuery } from "../router.js";
import "../table.js";
import { t } from "../texts.js";
import { html, nothing, signal } from "../vendor/ui.js";
import { lab as words } from "./texts.js";

const TONES = { valid: "good", ok: "good", warning: "warn", invalid: "bad" };

export const open = ([name, other]) => (name === undefined ? all() : other === undefined ? one(name) : two(name, other));

const get = (name, other) =>
  loaded((abort) => call(`weir/v1/lab/${encodeURIComponent(name)}${other ? `?with=${encodeURIComponent(other)}` : ""}`, { abort }));

function all() {
  const results = loaded((abort) => call("weir/v1/lab", { abort }));
  results.load();
  const selected = signal(new Set());
  const table = () => document.querySelector("weir-table");
  const rows = () => (results.data?.list ?? []).map((one) => ({ ...one, id: one.name }));
  // The older one is what the newer one is compared with.
  const compare = () => {
    const chosen = rows().filter((row) => selected.peek().has(row.id)).sort((one, next) => one.modified_ms - next.modified_ms);
    if (chosen.length === 2) go("lab", chosen[0].id, chosen[1].id);
  };
  let last = { data: null, rows: [] };
  const stable = () => {
    if (last.data !== results.data) last = { data: results.data, rows: rows() };
    return last.rows;
  };
  const body = () => {
    if (!results.data) return results.error ? problem(results.error) : waiting();
    if (stable().length === 0) return empty(words.none, words.noneAdvice);
    return html`<weir-table id="table-lab" .label=${t.screens.lab} .rows=${stable()} .columns=${COLUMNS} .order=${route.value.query.sort ?? "-modified_ms"}
      .onOrder=${(sort) => setQuery({ sort })} .selected=${selected.value} .onSelect=${(set) => { selected.value = set; table()?.update(); }}
      .onOpen=${(row) => go("lab", row.id)}></weir-table>`;
  };
  const actions = () => (selected.value.size === 2 ? html`<button class="main" @click=${compare}>${words.compare} ${key("Ctrl")}${key("↵")}</button>` : nothing);
  return {
    title: t.screens.lab,
    view: () => html`${heading(t.screens.lab, actions(), html`<p class="muted">${prose(words.about)}</p>`)}
      ${results.data?.more ? html`<p class="note">${words.more(results.data.more)}</p>` : nothing}
      ${results.data?.entries_looked_at ? html`<p class="note">${words.cut(number(results.data.entries_looked_at))}</p>` : nothing}<div class="fill">${body()}</div>`,
    keys: () => ({
      j: { run: () => (table()?.focus(), table()?.move(1)), label: t.keys.down },
      k: { run: () => (table()?.focus(), table()?.move(-1)), label: t.keys.up },
      x: { run: () => table()?.toggle(table().current), label: t.keys.select },
      Enter: { run: () => table()?.current && go("lab", table().current.id), label: t.keys.open },
      "Ctrl+Enter": { run: compare, label: words.compare.toLowerCase() },
    }),
    close: results.close,
  };
}

const COLUMNS = [
  { key: "name", title: t.columns.name, width: "minmax(200px, 4fr)", cell: (row) => html`<a href=${href("lab", row.id)}>${row.id}</a>` },
  { key: "bytes", title: words.size, width: "96px", rank: 2, align: "right", cell: (row) => bytes(row.bytes) },
  { key: "modified_ms", title: words.at, width: "110px", align: "right", cell: (row) => html`<span title=${time(row.modified_ms)}>${ago(row.modified_ms)}</span>` },
];

const lines = (label, { header, lines, more }) => html`<div class="wide-table" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${header.map((title, at) => html`<th class=${isText(header, at) ? "" : "right"}>${title}</th>`)}</tr></thead>
    <tbody>${lines.map((line, number) => html`<tr>${line.map((text, at) => cell(header, at, at === 0 && lines[number - 1]?.[0] === text ? "" : text))}</tr>`)}</tbody></table></div>
  ${more ? html`<p class="note">${words.moreLines(more)}</p>` : nothing}`;

const cell = (header, at, text) => html`<td class=${isText(header, at) ? "" : "right"}>${header[at] === "verdict" && TONES[text] ? badge(text, TONES[text]) : text}</td>`;
const isText = (header, at) => at === 0 || ["target", "verdict"].includes(header[at]);

const list = (title, texts) => (texts?.length ? html`<section><h2>${title}</h2><ul class="plain">${texts.map((text) => html`<li>${prose(text)}</li>`)}</ul></section>` : nothing);

const back = () => html`<p class="muted"><a href=${href("lab")}>${t.screens.lab}</a></p>`;

function one(name) {
  const result = get(name);
  result.load();
  const pair = (title, text) => html`<div><dt>${title}</dt><dd>${text}</dd></div>`;
  const body = (own) => html`
    <p class="verdict ${TONES[own.verdict]}"><b>${words.verdicts[own.verdict]}</b> <span>${own.headline ?? nothing}</span></p>
    <p>${prose(own.about)}</p>
    ${lines(words.figures, own)}
    <div class="cards"><section><h2>${words.circumstances}</h2><dl class="pairs-list">${pair(words.scenario, own.scenario)}${pair(words.started, own.started_at)}
      ${pair(words.machine, own.machine)}${pair(words.kernel, own.kernel)}${pair(words.method, own.quick ? words.quick(own.method) : own.method)}
      ${own.incomplete ? pair(words.incomplete, own.incomplete) : nothing}</dl></section>
      ${list(words.findings, own.findings)}${list(words.leftOut, own.left_out)}${list(words.legend, own.legend)}</div>`;
  return {
    title: name,
    view: () => html`${heading(result.data?.title ?? name, nothing, back())}${result.data ? body(result.data) : result.error ? problem(result.error) : waiting()}`,
    close: result.close,
  };
}

function two(before, after) {
  const result = get(before, after);
  result.load();
  const body = (own) => html`${list(words.notTheSame, own.circumstances)}
    ${own.lines.length ? lines(words.compared, own) : empty(words.nothingInCommon, words.nothingInCommonAdvice)}
    ${own.lines.length ? html`<p class="note">${own.legend}</p>` : nothing}`;
  return {
    title: words.compared,
    view: () => html`${heading(words.compared, nothing, html`${back()}<p>${words.against(html`<a href=${href("lab", after)}>${after}</a>`, html`<a href=${href("lab", before)}>${before}</a>`)}</p>`)}
      ${result.data ? body(result.data) : result.error ? problem(result.error) : waiting()}`,
    close: result.close,
  };
}
