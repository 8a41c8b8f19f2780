// The text editor, with what the node says about the text at its places. It lives in a shadow root, where its styles are
// constructed style sheets: the page's policy forbids `<style>` elements.

import { steps } from "./document.js";
import { t } from "./texts.js";
import {
  autocompletion, bracketMatching, closeSearchPanel, completionKeymap, defaultKeymap, drawSelection, EditorState, EditorView,
  findNext, findPrevious, highlightActiveLine, HighlightStyle, history, historyKeymap, indentOnInput, json, keymap, lineNumbers,
  lintGutter, lintKeymap, openSearchPanel, setDiagnostics, syntaxHighlighting, syntaxTree, tags, yaml,
} from "./vendor/editor.js";
import { suggest } from "./suggest.js";

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--code-name)" },
  { tag: [tags.string, tags.content], color: "var(--code-text)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: [tags.comment, tags.punctuation, tags.separator, tags.brace, tags.squareBracket], color: "var(--code-mark)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", backgroundColor: "var(--field)", color: "var(--text)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--text)", padding: "8px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--field)", color: "var(--muted)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--hover) 60%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--accent-soft)" },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { backgroundColor: "var(--accent-soft)", outline: "1px solid var(--accent)" },
  ".cm-tooltip": { backgroundColor: "var(--page)", color: "var(--text)", border: "1px solid var(--line)", borderRadius: "6px", boxShadow: "var(--shadow)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent-fill)", color: "var(--on-accent)" },
  ".cm-tooltip.cm-completionInfo": { maxWidth: "360px", padding: "8px 10px", fontSize: "12px", lineHeight: "1.5" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--bad)" },
  ".cm-diagnostic-warning": { borderLeftColor: "var(--warn)" },
  ".cm-panels": { backgroundColor: "var(--panel)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-textfield, .cm-button": { backgroundColor: "var(--field)", backgroundImage: "none", color: "var(--text)", border: "1px solid var(--control)", borderRadius: "4px" },
});

const scope = "editor search-panel";
const finding = [
  { key: "Mod-f", run: openSearchPanel, scope }, { key: "F3", run: findNext, shift: findPrevious, scope, preventDefault: true },
  { key: "Mod-g", run: findNext, shift: findPrevious, scope, preventDefault: true }, { key: "Escape", run: closeSearchPanel, scope },
];

/**
 * Properties: `value`, `language` (`json` or `yaml`), `label`, `readonly`, `schemas` (for completion, see `suggest`), `problems`:
 * `{pointer, text, severity}` or `{line, column, endLine, endColumn, text, severity}`. Sends `edit` with the text as `detail`.
 */
class Editor extends HTMLElement {
  #view = null;
  #value = "";
  #problems = [];

  language = "json";
  label = "";
  readonly = false;
  schemas = null;

  set value(text) {
    this.#value = text;
    const now = this.#view?.state.doc.toString();
    if (this.#view && now !== text) {
      this.#view.dispatch({ changes: { from: 0, to: now.length, insert: text } });
    }
  }

  set problems(problems) {
    this.#problems = problems;
    this.#mark();
  }

  connectedCallback() {
    const root = this.shadowRoot ?? this.attachShadow({ mode: "open" });
    this.#view = new EditorView({ parent: root, root, state: EditorState.create({ doc: this.#value, extensions: this.#extensions() }) });
    this.#mark();
  }

  disconnectedCallback() {
    this.#view.destroy();
    this.#view = null;
  }

  focus() {
    this.#view?.focus();
  }

  /** Puts the cursor at a line, from 1, and shows it. */
  showLine(number) {
    const doc = this.#view.state.doc;
    const line = doc.line(Math.max(1, Math.min(doc.lines, number)));
    this.#view.dispatch({ selection: { anchor: line.from }, effects: EditorView.scrollIntoView(line.from, { y: "center" }) });
    this.#view.focus();
  }

  #extensions() {
    const changes = EditorView.updateListener.of((update) => {
      if (!update.docChanged) return;
      const text = update.state.doc.toString();
      if (text === this.#value) return;
      this.#value = text;
      this.dispatchEvent(new CustomEvent("edit", { detail: text }));
    });
    const readonly = this.readonly ? [EditorState.readOnly.of(true)] : [];
    return [
      lineNumbers(), lintGutter(), history(), drawSelection(), indentOnInput(), bracketMatching(),
      highlightActiveLine(), this.language === "yaml" ? yaml() : json(), syntaxHighlighting(colours), look, changes, ...readonly,
      autocompletion({ override: [(context) => suggest(context, this.language === "json" ? this.schemas : null)], icons: false }),
      keymap.of([...completionKeymap, ...finding, ...historyKeymap, ...lintKeymap, ...defaultKeymap.filter((one) => one.key !== "Mod-Enter")]),
      EditorView.contentAttributes.of({ "aria-label": this.label, tabindex: "0" }),
      EditorState.phrases.of(t.editorPhrases),
    ];
  }

  #mark() {
    if (!this.#view) return;
    const { state } = this.#view;
    const found = this.#problems.map(({ text, severity = "error", ...place }) => ({ ...range(state, place), severity, message: text }));
    this.#view.dispatch(setDiagnostics(state, found));
  }
}

function range(state, place) {
  if (place.pointer !== undefined) return rangeOf(state, steps(place.pointer));
  const { doc } = state;
  const offset = (line, column) => {
    const own = doc.line(Math.max(1, Math.min(doc.lines, line)));
    return Math.min(own.to, own.from + Math.max(0, column - 1));
  };
  const from = offset(place.line ?? 1, place.column ?? 1);
  const to = place.endLine ? offset(place.endLine, place.endColumn ?? 1) : doc.lineAt(from).to;
  return { from, to: Math.max(from, to) };
}

/** Where the value of a pointer stands; of the last step that is there. */
function rangeOf(state, path) {
  let node = syntaxTree(state).topNode.firstChild;
  for (const step of path) {
    const next = node && child(state, node, step);
    if (!next) break;
    node = next;
  }
  return node ? { from: node.from, to: node.to } : { from: 0, to: 0 };
}

function child(state, node, step) {
  if (node.name === "Array") {
    let index = 0;
    for (let item = node.firstChild; item; item = item.nextSibling) {
      if (["[", "]", ","].includes(item.name)) continue;
      if (index === Number(step)) return item;
      index += 1;
    }
    return null;
  }
  for (const property of node.getChildren("Property")) {
    const name = property.getChild("PropertyName");
    if (name && state.sliceDoc(name.from + 1, name.to - 1) === step) return property.lastChild;
  }
  return null;
}

customElements.define("weir-editor", Editor);
