// Other environments: what they say about themselves, in what their resources differ, and making them as they are here.

import { call } from "../api.js";
import { number } from "../format.js";
import { changeView } from "../history.js";
import { loaded } from "../load.js";
import { tell } from "../notices.js";
import { badge, empty, heading, key, problem, prose, waiting } from "../parts.js";
import { href } from "../router.js";
import { t } from "../texts.js";
import { html, nothing, signal } from "../vendor/ui.js";
import { environments as words } from "./texts.js";

export const open = ([name]) => (name === undefined ? all() : one(name));

const place = (name) => `weir/v1/environments/${encodeURIComponent(name)}`;

function all() {
  const known = loaded((abort) => call("weir/v1/environments", { abort }));
  known.load();
  const pair = (title, text) => html`<div><dt>${title}</dt><dd>${text ?? "–"}</dd></div>`;
  const card = (own) => html`<section><div class="title-row"><h2>${own.name}</h2>${badge(own.state ? words.answers : words.silent, own.state ? "good" : "bad")}</div>
    ${own.error_msg ? html`<p class="problem">${prose(own.error_msg)}</p>` : nothing}
    <dl class="pairs-list">${pair(words.address, own.url)}${own.state ? [pair(t.node, own.state.node), pair(words.version, own.state.version), pair(words.revision, own.state.revision), pair(words.role, own.state.role)] : nothing}</dl>
    ${own.state ? html`<p class="note"><a class="button" href=${href("environments", own.name)}>${words.compare}</a></p>` : nothing}</section>`;
  return {
    title: t.screens.environments,
    view: () => html`${heading(t.screens.environments, nothing, html`<p class="muted">${words.about}</p>`)}
      ${known.data ? html`<div class="cards">${known.data.list.map(card)}</div>` : known.error ? problem(known.error) : waiting()}`,
    close: known.close,
  };
}

function one(name) {
  const difference = loaded((abort) => call(place(name), { abort }));
  const chosen = signal(new Set());
  /** What the other environment says to the chosen resources; `{changes}` or `{error}`. */
  const tried = signal(null);
  /** Whether the change is being made: nothing else is chosen or sent meanwhile. */
  const busy = signal(false);
  difference.load();
  const may = () => difference.data?.can_promote ?? false;
  const choose = (keys) => {
    if (busy.peek()) return;
    chosen.value = new Set(keys);
    tried.value = null;
  };
  const toggle = (wanted) => {
    const next = new Set(chosen.peek());
    if (!next.delete(wanted)) next.add(wanted);
    choose(next);
  };
  const send = (query) => {
    const { own_revision, revision } = difference.data;
    return call(`${place(name)}/promote${query}`, { method: "POST", body: { keys: [...chosen.peek()], own_revision, if_revision: revision } });
  };
  const check = async () => {
    const asked = chosen.peek();
    let answer;
    try {
      answer = { changes: (await send("?dry_run=true")).changes ?? [] };
    } catch (error) {
      answer = { error };
    }
    if (chosen.peek() !== asked) return;
    if (answer.error?.status === 412) {
      choose([]);
      await difference.load();
    }
    tried.value = answer;
  };
  const promote = async () => {
    const { size } = chosen.peek();
    busy.value = true;
    let failed = null;
    try {
      const told = await send("");
      tell(words.promoted(size, name, told.revision));
    } catch (error) {
      failed = error;
    }
    busy.value = false;
    // What was compared may be otherwise now, also after a fault.
    if (!failed || failed.status === 412 || failed.status >= 500) {
      choose([]);
      await difference.load();
    }
    if (failed) tried.value = { error: failed };
  };
  const step = () => {
    if (busy.peek() || !may() || chosen.peek().size === 0) return;
    if (tried.peek()?.changes) promote();
    else check();
  };

  const item = (change) => html`<li><div class="actions">${may() ? html`<label><input type="checkbox" aria-label=${t.select(change.key)} .checked=${chosen.value.has(change.key)} ?disabled=${busy.value} @change=${() => toggle(change.key)}></label>` : nothing}
      ${badge(words.actions[change.action], { created: "good", deleted: "bad" }[change.action])}</div>
    ${change.members ? changeView({ key: change.key, action: "", members: change.members }) : html`<p><span class="mono">${change.key}</span> <span class="muted">${words.large}</span></p>`}${change.credentials ? html`<p class="muted">${words.credentials(change.credentials)}</p>` : nothing}</li>`;
  const verdict = () => {
    const now = tried.value;
    if (!now) return nothing;
    if (now.error) return problem(now.error);
    return html`<section class="rollback"><h2>${words.would(name, now.changes.length)}</h2>${now.changes.map(changeView)}</section>`;
  };
  const actions = () => (may() ? html`
    <button @click=${() => choose(chosen.value.size ? [] : difference.data.list.map((change) => change.key))}>${chosen.value.size ? words.noneOf : t.selectAll} ${key("a")}</button>
    <button class="main" ?disabled=${busy.value || chosen.value.size === 0} @click=${step}>${tried.value?.changes ? words.promote(chosen.value.size) : words.check(chosen.value.size)} ${key("Ctrl")}${key("↵")}</button>` : nothing);
  const body = (own) => html`${verdict()}
    ${own.differing === 0 ? empty(words.same, words.sameAdvice(number(own.equal))) : html`<h2 class="hidden">${words.differences}</h2><ul class="items">${own.list.map(item)}</ul>`}
    ${own.more ? html`<p class="note">${words.more(number(own.more))}</p>` : nothing}`;
  return {
    title: name,
    view: () => html`${heading(name, difference.data ? actions() : nothing, html`<p class="muted"><a href=${href("environments")}>${t.screens.environments}</a></p>
      ${difference.data ? html`<p>${words.summary(number(difference.data.differing), number(difference.data.equal), difference.data.revision, difference.data.own_revision)}</p>` : nothing}`)}
      ${difference.data ? body(difference.data) : difference.error ? problem(difference.error) : waiting()}`,
    keys: () => (may() ? {
      a: { run: () => choose(difference.data.list.map((change) => change.key)), label: t.selectAll.toLowerCase() },
      "Ctrl+Enter": { run: step, label: words.promoteKey },
    } : {}),
    close: difference.close,
  };
}
