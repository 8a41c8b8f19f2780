// What became of log records.

import { call, session } from "../api.js";
import { bytes, number, time } from "../format.js";
import { loaded } from "../load.js";
import { badge, empty, heading, problem, prose, waiting } from "../parts.js";
import { t } from "../texts.js";
import { html, nothing, signal } from "../vendor/ui.js";
import { records as words } from "./texts.js";

const EVERY_MS = 5000;

export function open() {
  const records = loaded((abort) => call("weir/v1/records", { abort }), EVERY_MS);
  records.load();
  // What became of test records, by destination.
  const tests = signal(new Map());
  const set = (name, test) => (tests.value = new Map(tests.peek()).set(name, test));
  const send = async (name) => {
    if (tests.peek().get(name)?.waits) return;
    set(name, { waits: true });
    try {
      set(name, await call("weir/v1/records/test", { method: "POST", body: { sink: name } }));
    } catch (error) {
      set(name, { error });
    }
    records.load();
  };
  return {
    title: t.screens.records,
    view: () => [heading(t.screens.records, nothing, html`<p class="muted">${words.about}</p>`), body(records, tests.value, session.value.role === "viewer" ? null : send)],
    close: records.close,
  };
}

function body(records, tests, send) {
  if (!records.data) return records.error ? problem(records.error) : waiting();
  const { sinks } = records.data;
  if (sinks.length === 0) return empty(words.emptyTitle, words.empty);
  return html`${problem(records.error)}<div class="cards">${sinks.map((sink) => account(sink, tests.get(sink.name), send))}</div>`;
}

const settled = (reasons) => Object.entries(reasons).filter(([, tally]) => tally.records > 0);

/** An account, which always balances: accepted is the sum of the others. */
function account(sink, test, send) {
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
    <div class="test-record">${send && sink.takes_tests ? html`<button aria-label=${words.testOf(sink.name)} aria-busy=${String(test?.waits ?? false)} @click=${() => send(sink.name)}>${words.test}</button>` : nothing}
      <div role="status">${test ? became(test) : nothing}</div></div>
    <table><thead><tr><th>${words.outcome}</th><th class="right">${words.records}</th><th class="right">${words.size}</th></tr></thead>
      <tbody>${rows.map(([title, tally, tone]) => html`<tr><td class=${tally.records ? tone : ""}>${title}</td><td class="right">${number(tally.records)}</td><td class="right muted">${bytes(tally.bytes)}</td></tr>`)}
      <tr><td><b>${words.accepted}</b></td><td class="right"><b>${number(sink.accepted.records)}</b></td><td class="right muted">${bytes(sink.accepted.bytes)}</td></tr></tbody></table></section>`;
}

/** What became of a test record; of several, if the destination is that of loggers with different options. */
function became(test) {
  if (test.waits) return html`<p class="muted">${words.testing}</p>`;
  if (test.error) return problem(test.error);
  return html`${test.outcomes.map(({ outcome, reason, error }) => html`<p class=${TONES[outcome] ?? "muted"}>${words.tested(outcome, reason)}${error ? html` ${prose(error)}` : nothing}</p>`)}
    <p class="muted">${prose(words.testMark(test.id))}</p>`;
}

const TONES = { delivered: "good", rejected: "bad", dropped: "bad" };
