// The text editor.
export { autocompletion, completionKeymap } from "@codemirror/autocomplete";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { json } from "@codemirror/lang-json";
export { yaml } from "@codemirror/lang-yaml";
export {
  bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting, syntaxTree,
} from "@codemirror/language";
export { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
export { closeSearchPanel, findNext, findPrevious, openSearchPanel } from "@codemirror/search";
export { EditorState } from "@codemirror/state";
export {
  drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers,
} from "@codemirror/view";
export { tags } from "@lezer/highlight";
