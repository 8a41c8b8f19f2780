// The draft: what has changed in each file, what the node says about it, and how it becomes the configuration.

import { again, changes, check, load, typed, words, write } from "../draft.js";
import { draft, forgetDraft } from "../drafts.js";
import { diffText } from "../diff.js";
import { tell } from "../notices.js";
import { diagnostic, empty, heading, key, problem, prose, waiting } from "../parts.js";
import { href, route } from "../router.js";
import { refreshAll } from "../tables.js";
import { t } from "../texts.js";
import { effect, html, nothing, signal } from "../vendor/ui.js";

const CHECK_AFTER_MS = 300;

export async function open() {
  await load();
  const screen = new Draft();
  return {
    title: t.screens.draft,
    view: () => screen.view(),
    keys: () => ({ "Ctrl+Enter": { run: screen.finish, label: words.writeKey }, y: { run: screen.copy, label: words.copyKey } }),
    close: () => screen.close(),
  };
}

class Draft {
  /** The answer to the last check; null while there is none. */
  #answer = signal(null);
  #refused = signal(null);
  #busy = signal(false);
  #isReady = signal(false);
  #timer = 0;
  #running = null;
  #stop = effect(() => this.#checkLater(draft.value.texts));

  close() {
    this.#stop();
    clearTimeout(this.#timer);
    this.#running?.abort();
  }

  #checkLater(texts) {
    clearTimeout(this.#timer);
    this.#running?.abort();
    this.#answer.value = null;
    if (texts.size) this.#timer = setTimeout(() => this.#check(), CHECK_AFTER_MS);
  }

  async #check() {
    const own = (this.#running = new AbortController());
    try {
      const answer = await check(own.signal);
      if (own === this.#running) this.#answer.value = answer;
    } catch (error) {
      if (!own.signal.aborted) this.#refused.value = error;
    }
  }

  /** The file that is shown: that of the URL, or the first that has changed. */
  #file() {
    const { files } = draft.value.base;
    const name = route.value.query.file ?? changes.value[0]?.name;
    return files.find((file) => file.name === name) ?? files[0];
  }

  #text = (file) => draft.value.texts.get(file.name) ?? file.text;

  finish = () => (draft.peek().base.writable ? this.#write() : this.copy());

  #write = async () => {
    if (this.#busy.peek() || !draft.peek().texts.size || this.#answer.peek()?.valid !== true) return;
    this.#busy.value = true;
    this.#refused.value = null;
    try {
      const { served } = await write();
      tell(served ? words.written : words.notServedYet, { tone: served ? "good" : "warn" });
      await Promise.all([load(), refreshAll()]);
    } catch (error) {
      this.#refused.value = error;
    }
    this.#busy.value = false;
  };

  copy = async () => {
    const file = this.#file();
    try {
      await navigator.clipboard.writeText(this.#text(file));
      tell(words.copied(file.name));
    } catch {
      tell(t.copyFailed, { tone: "bad" });
    }
  };

  #discard = async () => {
    const before = draft.peek();
    forgetDraft();
    this.#refused.value = null;
    tell(words.discarded, { undo: () => (draft.value = before) });
    await load().catch((error) => (this.#refused.value = error));
  };

  #again = async () => {
    this.#refused.value = null;
    this.#answer.value = null;
    this.#busy.value = true;
    try {
      await again();
    } catch (error) {
      this.#refused.value = error;
      this.#checkLater(draft.peek().texts);
    }
    this.#busy.value = false;
  };

  view() {
    const { base, texts } = draft.value;
    if (!base) return [heading(t.screens.draft), this.#refused.value ? problem(this.#refused.value) : waiting()];
    const file = this.#file();
    const about = base.writable ? words.aboutWriting : words.about;
    const tab = route.value.query.tab || "diff";
    return html`${heading(t.screens.draft, this.#actions(base, texts), html`<p class="muted">${prose(about)}</p>`)}
      ${this.#files(base, file, tab)}
      <div class="detail json"><div class=${tab === "text" ? "body" : ""}>${tab === "text" ? this.#editor(file) : this.#difference(file)}</div>
      <aside>${this.#aside(file)}</aside></div>`;
  }

  #actions(base, texts) {
    if (!texts.size) return nothing;
    const copy = html`<button class=${base.writable ? "" : "main"} @click=${this.copy}>${words.copy} ${key("y")}</button>`;
    return html`<button @click=${this.#discard}>${words.reset}</button>${copy}
      ${base.writable ? html`<button class="main" ?disabled=${this.#busy.value || this.#answer.value?.valid !== true} @click=${this.#write}>${words.write} ${key("Ctrl")}${key("↵")}</button>` : nothing}`;
  }

  #files({ files }, shown, tab) {
    const link = (query, title, isHere) => html`<a href=${href("draft", query)} aria-current=${isHere ? "page" : nothing}>${title}</a>`;
    const other = tab === "text" ? "text" : "";
    return html`<nav class="tabs" aria-label=${words.files}>${files.map((file) => link({ file: file.name, tab: other },
      html`${short(file.name)}${draft.value.texts.has(file.name) ? ` · ${words.changed}` : ""}`, file === shown))}</nav>
      <nav class="tabs" aria-label=${t.tabs}>${link({ file: shown.name }, t.difference, tab !== "text")}${link({ file: shown.name, tab: "text" }, words.text, tab === "text")}</nav>`;
  }

  #difference(file) {
    const after = this.#text(file);
    if (after === file.text) return empty(words.none, words.noneAdvice);
    return diffText(file.text, after, words.differenceOf(file.name));
  }

  #editor(file) {
    if (!this.#isReady.value) {
      import("../editor.js").then(() => (this.#isReady.value = true), (error) => (this.#refused.value = error));
      return waiting();
    }
    const problems = (this.#answer.value?.findings ?? []).filter((found) => found.file === file.name && found.line).map((found) => ({
      line: found.line, column: found.column, endLine: found.end_line, endColumn: found.end_column, severity: found.severity, text: found.problem }));
    return html`<weir-editor .label=${words.textOf(file.name)} .language=${"yaml"} .value=${this.#text(file)} .problems=${problems}
      @edit=${(event) => typed(file.name, event.detail)}></weir-editor>`;
  }

  #aside(file) {
    const refused = this.#refused.value;
    const answer = this.#answer.value;
    const hasChanged = draft.value.texts.size > 0;
    return html`
      ${refused?.status === 412 ? this.#stale() : problem(refused)}
      ${hasChanged ? html`<p class=${answer?.valid === false ? "bad" : "muted"} role="status">${!answer ? t.checking : answer.valid ? t.noProblems : t.problems(answer.findings.length)}</p>` : nothing}
      ${answer?.findings.length ? html`<section><h2>${answer.valid ? t.warnings : words.findings}</h2>
        <ul class="findings ${answer.valid ? "warn" : "bad"}">${answer.findings.map((found) => diagnostic({ ...found, path: placeOf(found) }))}</ul></section>` : nothing}
      ${this.#text(file).includes("__WEIR_HIDDEN_") ? html`<p class="note">${prose(words.hidden)}</p>` : nothing}
      ${hasChanged && !draft.value.base.writable ? html`<section><h2>${words.apply}</h2><p>${prose(words.applyAbout(file.name))}</p></section>` : nothing}`;
  }

  #stale() {
    return html`<section role="alert"><p class="problem">${words.stale}</p>
      ${draft.value.isTyped ? html`<p class="muted">${words.staleTyped}</p>` : html`<button class="main" @click=${this.#again}>${words.again}</button>`}</section>`;
  }
}

const short = (name) => name.split("/").at(-1);
const placeOf = (found) => (found.line ? `${short(found.file)}:${found.line}:${found.column}` : short(found.file ?? ""));
