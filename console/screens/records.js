// What became of log records.

import { call } from "../api.js";
import { bytes, number, time } from "../format.js";
import { loaded } from "../load.js";
import { badge, empty, heading, problem, prose, waiting } from "../parts.js";
import { t } from "../texts.js";
import { html, nothing } from "../vendor/ui.js";
import { records as words } from "./texts.js";

const EVERY_MS = 5000;

export function open() {
  const records = loaded((abort) => call("weir/v1/records", { abort }), EVERY_MS);
  records.load();
  return {
    title: t.screens.records,
    view: () => [heading(t.screens.records, nothing, html`<p class="muted">${words.about}</p>`), body(records)],
    close: records.close,
  };
}

function body(records) {
  if (!records.data) return records.error ? problem(records.error) : waiting();
  const { sinks } = records.data;
  if (sinks.length === 0) return empty(words.emptyTitle, words.empty);
  return html`${problem(records.error)}<div class="cards">${sinks.map(account)}</div>`;
}

const settled = (reasons) => Object.entries(reasons).filter(([, tally]) => tally.records > 0);

/** An account, which always balances: accepted is the sum of the others. */
function account(sink) {
  const { memory, spool, inflight } = sink.pending;
  const rows = [
    [words.delivered, sink.delivered, "good"],
    ...settled(sink.rejected).map(([reason, tally]) => [words.rejected(reason), tally, "bad"]),
    ...settled(sink.dropped).map(([reason, tally]) => [words.dropped(reason), tally, "bad"]),
    [words.inMemory, memory, ""], [words.inSpool, spool, ""], [words.inFlight, inflight, ""],
  ];
  return html`<section><div class="title-row"><h2 class="wrap">${sink.name}</h2>${badge(sink.last_error ? words.failing : words.working, sink.last_error ? "bad" : "good")}</div>
    <p class="muted">${sink.plugin}</p>
    ${sink.last_error ? html`<p class="problem">${prose(sink.last_error)}</p>` : nothing}
    ${sink.next_attempt_ms ? html`<p class="muted">${words.nextAttempt(time(sink.next_attempt_ms))}</p>` : nothing}
    <table><thead><tr><th>${words.outcome}</th><th class="right">${words.records}</th><th class="right">${words.size}</th></tr></thead>
      <tbody>${rows.map(([title, tally, tone]) => html`<tr><td class=${tally.records ? tone : ""}>${title}</td><td class="right">${number(tally.records)}</td><td class="right muted">${bytes(tally.bytes)}</td></tr>`)}
      <tr><td><b>${words.accepted}</b></td><td class="right"><b>${number(sink.accepted.records)}</b></td><td class="right muted">${bytes(sink.accepted.bytes)}</td></tr></tbody></table></section>`;
}
