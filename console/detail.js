// The page of one resource: a form, the same as text, its history; what has changed, and what the node says about it.

import { session } from "./api.js";
import { datesCompared } from "./certificate.js";
import { check, create, placeIn, readOne, removeAll, save, undone } from "./changes.js";
import { diff } from "./diff.js";
import { editable, pointer, pretty, put, same } from "./document.js";
import { drafts, mayChange } from "./drafts.js";
import { form } from "./form/form.js";
import { openPicker } from "./form/picker.js";
import { ago, time } from "./format.js";
import { historyOf } from "./history.js";
import { leavingField } from "./keys.js";
import { wordsOf } from "./kinds.js";
import { maker } from "./maker.js";
import { tell } from "./notices.js";
import { badge, diagnostic, empty, heading, key, problem, prose, waiting } from "./parts.js";
import { go, href, route, setQuery } from "./router.js";
import { plugins, schemaOf } from "./schemas.js";
import { refresh, table } from "./tables.js";
import { t } from "./texts.js";
import { effect, html, nothing, signal } from "./vendor/ui.js";
import { entry as yamlEntry } from "./yaml.js";

const CHECK_AFTER_MS = 300;

/** What the user has changed in a new resource while it was being created, `{place, document, text}`: its page goes on with that. */
let changedSince = null;

/** The element of the editor is defined: before that, it would not take its properties. */
const editorIsReady = signal(false);

export async function open(kind, id) {
  const [schema, known] = await Promise.all([schemaOf(kind), plugins()]);
  const page = new Page(kind, id, schema, known);
  await page.load();
  return page;
}

class Page {
  #kind;
  #id;
  #schema;
  #plugins;
  /** The resource as the node has it, `{value, modifiedIndex}`; null for a new one. */
  #entry = signal(null);
  #base = signal({});
  /** The document as it is edited. */
  #document = signal({});
  /** The text, while it is edited as such: it need not be JSON. */
  #text = signal(null);
  #newId = signal("");
  #missing = signal(null);
  #answer = signal({ diagnostics: [], warnings: [] });
  #checking = signal(false);
  #refused = signal(null);
  /** The resource as another user has saved it since this page read it. */
  #theirs = signal(null);
  #isSaving = false;
  #shown = new Map();
  /** The content that a new resource starts with. Its fields show no faults until the user has changed it, or wants to create it. */
  #start = null;
  #stop = [];
  #isClosed = false;
  #history = null;

  constructor(kind, id, schema, known) {
    this.#kind = kind;
    this.#id = id;
    this.#schema = schema;
    this.#plugins = known;
  }

  get title() {
    return this.#id ?? t.newOne(wordsOf(this.#kind).one);
  }

  async load() {
    if (this.#id === null) this.#begin(null, this.#kind.start());
    else await this.#read();
    if (this.#entry.peek() && changedSince?.place === href(this.#kind.list, this.#id)) {
      this.#document.value = changedSince.document;
      this.#text.value = changedSince.text;
    }
    changedSince = null;
    this.#stop.push(effect(() => this.#checkLater()));
    const before = undone.peek();
    this.#stop.push(effect(() => {
      if (undone.value !== before && undone.value.list === this.#kind.list) queueMicrotask(() => this.#again());
    }));
    for (const list of referenced(this.#schema)) refresh(list);
  }

  async #read() {
    try {
      const entry = await readOne(this.#kind, this.#id);
      this.#begin(entry, editable(entry.value));
    } catch (error) {
      this.#missing.value = error;
    }
  }

  /** Reads the resource again, unless the user has begun to change it: then it is compared when it is saved. */
  async #again() {
    if (this.#id === null || this.#isDirty()) return;
    await this.#read();
    this.#history?.load();
  }

  #begin(entry, value) {
    this.#shown.clear();
    this.#start = entry ? null : value;
    this.#entry.value = entry;
    this.#base.value = entry ? value : {};
    this.#document.value = value;
    this.#text.value = null;
    this.#theirs.value = null;
    this.#refused.value = null;
    this.#answer.value = { diagnostics: [], warnings: [] };
  }

  shown() {
    if (this.#id === null) focusFirst();
  }

  close() {
    this.#isClosed = true;
    for (const stop of this.#stop) stop();
    this.#history?.close();
  }

  #isDirty() {
    return this.#text.value?.error !== undefined || !same(this.#document.value, this.#base.value);
  }

  #mayWrite() {
    return mayChange() && (drafts() || !this.#entry.value?.source);
  }

  /** Asks the node about the document as it is, some time after the last key. */
  #checkLater() {
    const value = this.#document.value;
    clearTimeout(this.#timer);
    this.#running?.abort();
    if (!mayChange() || same(value, this.#base.value)) {
      this.#answer.value = { diagnostics: [], warnings: [] };
      this.#checking.value = false;
      return undefined;
    }
    this.#checking.value = true;
    this.#timer = setTimeout(() => this.#check(value), CHECK_AFTER_MS);
    return () => clearTimeout(this.#timer);
  }

  #timer = 0;
  #running = null;

  async #check(value) {
    const own = (this.#running = new AbortController());
    const name = this.#id ?? (this.#newId.peek() || value[this.#kind.self] || "new");
    try {
      const answer = await check(this.#kind, this.#id ?? `${this.#kind.prefix ?? ""}${name}`, value, own.signal);
      if (own === this.#running) this.#answer.value = answer;
    } catch (error) {
      if (!own.signal.aborted) this.#answer.value = { diagnostics: [{ problem: error.message }], warnings: [] };
    }
    if (own === this.#running) this.#checking.value = false;
  }

  #set = (path, value, { toggle } = {}) => {
    const wasClean = !this.#isDirty();
    this.#document.value = put(this.#document.peek(), path, value);
    this.#text.value = null;
    // A plugin that is switched on or off in a resource without other changes is saved at once: it can be undone.
    if (toggle && wasClean && this.#entry.peek()) this.#save();
  };

  #save = async () => {
    // Some controls write when they are left: the one at hand is, for a moment.
    const at = document.activeElement;
    if (at?.closest?.(".form")) {
      at.blur();
      at.focus();
    }
    // One at a time: a second one would create another resource.
    if (this.#isSaving || !this.#mayWrite() || this.#text.peek()?.error !== undefined || !this.#isDirty()) return;
    this.#isSaving = true;
    try {
      await (this.#entry.peek() === null ? this.#create() : this.#replace());
    } catch (error) {
      if (error.status === 412 && this.#entry.peek()) await this.#conflict(error);
      else this.#refuse(error);
    } finally {
      this.#isSaving = false;
    }
  };

  async #create() {
    const [value, text, leave] = [this.#document.peek(), this.#text.peek(), leavingField()];
    const isSame = () => this.#document.peek() === value && this.#text.peek() === text;
    const made = await create(this.#kind, this.#newId.peek().trim(), value, () => isSame() && leave());
    // A user who has opened another page meanwhile stays on that page.
    if (this.#isClosed) return;
    if (!isSame()) changedSince = { place: href(this.#kind.list, made), document: this.#document.peek(), text: this.#text.peek() };
    go(this.#kind.list, made);
  }

  /** What was saved is the new base; what the user has changed since stays. */
  async #replace() {
    const [value, text, leave] = [this.#document.peek(), this.#text.peek(), leavingField()];
    await save(this.#kind, this.#entry.peek(), value, (entry) => {
      const [now, nowText] = [this.#document.peek(), this.#text.peek()];
      const isSame = now === value && nowText === text;
      if (isSame) leave();
      this.#begin(entry, editable(entry.value));
      if (isSame) return;
      this.#document.value = now;
      this.#text.value = nowText;
    });
    this.#history?.load();
  }

  async #conflict(error) {
    try {
      this.#theirs.value = await readOne(this.#kind, this.#id);
    } catch {
      this.#refuse(error);
    }
  }

  #refuse(error) {
    this.#refused.value = error;
    if (error.diagnostics?.length) this.#answer.value = { diagnostics: error.diagnostics, warnings: [] };
  }

  #discard = () => {
    const entry = this.#entry.peek();
    if (entry) this.#begin(entry, editable(entry.value));
    else go(this.#kind.list);
  };

  #remove = async () => {
    if (this.#entry.peek() && this.#mayWrite() && (await removeAll(this.#kind, [this.#id])) && !this.#isClosed) go(this.#kind.list);
  };

  #copy = async () => {
    try {
      await navigator.clipboard.writeText(yamlEntry(this.#kind.list, this.#document.peek()));
      tell(t.copied);
    } catch {
      tell(t.copyFailed, { tone: "bad" });
    }
  };

  keys() {
    const tab = (name) => ({ run: () => setQuery({ tab: name }), label: { form: t.keys.edit, json: t.keys.text, history: t.keys.history }[name] });
    const edit = () => {
      setQuery({ tab: "" });
      focusFirst();
    };
    return {
      "Ctrl+Enter": { run: this.#save, label: t.keys.save },
      e: { run: edit, label: t.keys.edit },
      p: { run: () => (setQuery({ tab: "" }), openPicker("add-plugin")), label: t.keys.plugin },
      J: tab("json"),
      ...(this.#id === null ? {} : {
        h: tab("history"),
        y: { run: this.#copy, label: t.keys.yaml },
        Delete: { run: this.#remove, label: t.keys.remove },
      }),
    };
  }

  view() {
    const words = wordsOf(this.#kind);
    if (this.#missing.value) {
      const error = this.#missing.value;
      return error.status === 404
        ? [heading(this.title), empty(t.notThere(`${words.one} ${this.#id}`), t.notThereAdvice, html`<a class="button" href=${href(this.#kind.list)}>${words.many}</a>`)]
        : [heading(this.title), problem(error)];
    }
    const tab = route.value.query.tab || "form";
    return html`${this.#heading(words)}${this.#tabs(tab)}
      <div class="detail ${tab}"><div class="body">${this.#body(tab)}</div>
      ${tab === "history" ? nothing : html`<aside>${this.#aside()}</aside>`}</div>
      ${tab === "history" ? nothing : this.#bar()}`;
  }

  #heading(words) {
    const { value, modifiedIndex, source, line } = this.#entry.value ?? {};
    const below = html`<p class="muted"><a href=${href(this.#kind.list)}>${words.many}</a>
      ${value?.name && value.name !== this.#id ? html` · ${value.name}` : nothing}
      ${value?.update_time ? html` · <span title=${time(value.update_time * 1000)}>${t.columns.changed.toLowerCase()} ${ago(value.update_time * 1000)}</span>` : nothing}
      ${modifiedIndex ? html` · ${t.revision(modifiedIndex)}` : nothing}
      ${value?.status === 0 ? html` ${badge(t.off)}` : nothing}</p>
      ${source ? html`<p class="note">${prose((drafts() ? maker.words : t).inFile(`\`${source}\``, line))}</p>` : nothing}`;
    const actions = this.#id === null ? nothing : html`
      <button @click=${this.#copy}>${t.copyYaml} ${key("y")}</button>
      ${this.#mayWrite() ? html`<button class="danger" @click=${this.#remove}>${t.remove} ${key("Del")}</button>` : nothing}`;
    return heading(this.title, actions, below);
  }

  #tabs(now) {
    const all = [["form", t.form], ["json", t.text], ...(this.#id === null || session.value.mode === "file" ? [] : [["history", t.historyTab]])];
    return html`<nav class="tabs" aria-label=${t.tabs}>${all.map(([name, title]) => html`<a href=${href(...route.value.path, { tab: name === "form" ? "" : name })}
      aria-current=${name === now ? "page" : nothing}>${title}</a>`)}</nav>`;
  }

  #body(tab) {
    if (tab === "history") return (this.#history ??= historyOf(`${this.#kind.list}/${this.#id}`)).view();
    if (tab === "json") return this.#editor();
    const value = this.#document.value;
    const own = form({
      schema: this.#schema, value, set: this.#set, faults: this.#faults(), plugins: this.#plugins, main: this.#kind.main,
      shown: this.#shown, consumer: this.#kind.list === "consumers",
      references: (list) => (list ? (table(list).value.rows ?? []).map((row) => row.id) : []),
    });
    return html`<fieldset ?disabled=${!this.#mayWrite()}><legend class="hidden">${this.title}</legend>${own}${this.#idField()}</fieldset>`;
  }

  #idField() {
    if (this.#id !== null || this.#kind.self) return nothing;
    return html`<div class="field"><div class="name"><label for="new-id">${t.id}</label></div><div class="value">
      <input id="new-id" type="text" autocomplete="off" spellcheck="false" .value=${this.#newId.value} @input=${(event) => (this.#newId.value = event.target.value)}>
      <p class="about">${prose(t.idAbout)}</p></div></div>`;
  }

  #editor() {
    if (!editorIsReady.value) {
      import("./editor.js").then(() => (editorIsReady.value = true), (error) => this.#refuse(error));
      return waiting();
    }
    const text = this.#text.value?.text ?? pretty(this.#document.value);
    const problems = this.#told().diagnostics.map((found) => ({ pointer: pointer(placeIn(found, this.#document.value)), text: found.problem }));
    return html`<weir-editor .label=${`${t.text}: ${this.title}`} .readonly=${!this.#mayWrite()} .schemas=${{ root: this.#schema, plugins: this.#plugins }}
      .value=${text} .problems=${problems} @edit=${(event) => this.#edited(event.detail)}></weir-editor>`;
  }

  #edited(text) {
    try {
      this.#document.value = JSON.parse(text);
      this.#text.value = { text };
    } catch (error) {
      this.#text.value = { text, error: error.message };
    }
  }

  /** Nothing was filled in yet: the bar has the number of problems, and no field is called wrong before a user has come to it. */
  #isUntouched() {
    return this.#document.value === this.#start && !this.#refused.value;
  }

  #told() {
    return this.#isUntouched() ? { diagnostics: [], warnings: [] } : this.#answer.value;
  }

  /** What the node says, by the pointers of the form's fields. */
  #faults() {
    const faults = new Map();
    for (const found of this.#told().diagnostics) {
      const place = pointer(placeIn(found, this.#document.value));
      const text = found.advice ? `${found.problem}; ${found.advice}` : found.problem;
      faults.set(place, [...(faults.get(place) ?? []), text]);
    }
    return faults;
  }

  #aside() {
    if (this.#theirs.value) return this.#threeWays();
    const { diagnostics, warnings } = this.#told();
    const dirty = this.#isDirty();
    const bad = this.#text.value?.error;
    return html`
      ${bad !== undefined ? html`<p class="problem">${t.badJson(bad)}</p>` : nothing}
      ${this.#refused.value && !diagnostics.length ? problem(this.#refused.value) : nothing}
      ${diagnostics.length ? html`<section><h2>${t.problems(diagnostics.length)}</h2><ul class="findings bad">${diagnostics.map(diagnostic)}</ul></section>` : nothing}
      ${warnings.length ? html`<section><h2>${t.warnings}</h2><ul class="findings warn">${warnings.map((one) => diagnostic(typeof one === "string" ? { problem: one } : one))}</ul></section>` : nothing}
      ${this.#kind.list === "ssls" ? datesCompared(this.#base.value.cert, this.#document.value.cert) : nothing}
      <section><h2>${t.changes}</h2>${dirty ? diff(this.#entry.value ? this.#base.value : undefined, this.#document.value) : html`<p class="muted">${this.#mayWrite() ? t.noChanges : nothing}</p>`}</section>`;
  }

  #threeWays() {
    const theirs = this.#theirs.value;
    const overTheirs = async () => {
      const mine = this.#document.peek();
      this.#begin(theirs, editable(theirs.value));
      this.#document.value = mine;
      await this.#save();
    };
    return html`<section role="alert"><p class="problem">${t.conflict}</p>
      <h2>${t.conflictTheirs}</h2>${diff(this.#base.value, editable(theirs.value))}
      <h2>${t.conflictYours}</h2>${diff(this.#base.value, this.#document.value)}
      <div class="actions"><button @click=${() => this.#begin(theirs, editable(theirs.value))}>${t.takeTheirs}</button>
      <button class="danger" @click=${overTheirs}>${t.keepMine}</button></div></section>`;
  }

  #bar() {
    if (!this.#mayWrite()) return nothing;
    const dirty = this.#isDirty();
    const faulty = this.#answer.value.diagnostics.length;
    // Not disabled in full: some fields write when they are left, which the press of this button does.
    const words = this.#checking.value ? t.checking : !dirty ? "" : faulty ? t.problems(faulty) : t.noProblems;
    return html`<div class="bar"><span class=${faulty && !this.#isUntouched() ? "bad" : "muted"} role="status">${words}</span><span class="grow"></span>
      <button ?disabled=${!dirty && this.#id !== null} @click=${this.#discard}>${t.discard}</button>
      <button class="main" aria-disabled=${String(!dirty || this.#text.value?.error !== undefined)} @click=${this.#save}>${this.#id === null ? t.create : t.save} ${key("Ctrl")}${key("↵")}</button></div>`;
  }
}

const focusFirst = () => document.querySelector("#content .form :is(input, select, textarea)")?.focus();

/** The lists that a schema's members refer to. */
function referenced(schema) {
  return new Set(Object.values(schema.properties ?? {}).map((own) => own["x-weir-reference"]).filter((list) => list && list !== "hubs"));
}
