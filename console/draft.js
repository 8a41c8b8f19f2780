// The draft: changes of a node whose resources stand in files. They stay in this page, as texts of files, until they are written or
// copied; the node makes the texts, and checks them.

import { call } from "./api.js";
import { words } from "./draft-texts.js";
import { draft, forgetDraft } from "./drafts.js";
import { computed } from "./vendor/ui.js";

export { words };

/** Reads the files, unless they have been. */
export async function load() {
  if (draft.peek().base) return draft.peek();
  const base = await call("weir/v1/draft");
  if (!draft.peek().base) draft.value = { ...draft.peek(), base };
  return draft.peek();
}

const filesOf = (texts) => [...texts].map(([name, text]) => ({ name, text }));

/** The texts without those that are as in the files. */
function differing(base, texts) {
  return new Map([...texts].filter(([name, text]) => base.files.find((file) => file.name === name)?.text !== text));
}

/** Changes run one after the other: each begins with the texts of the one before. */
let turn = Promise.resolve();

/** Makes operations, `{put, value}` or `{delete}`. Returns what takes them back. Throws a `Refusal`. */
export function change(operations) {
  const own = turn.then(() => changed(operations));
  turn = own.catch(() => {});
  return own;
}

async function changed(operations) {
  const before = await load();
  const body = { files: filesOf(before.texts), operations };
  const { files } = await call("weir/v1/draft/edit", { method: "POST", body });
  const texts = new Map(before.texts);
  for (const { name, text } of files) texts.set(name, text);
  const after = { ...before, texts: differing(before.base, texts), operations: [...before.operations, ...operations] };
  draft.value = after;
  return async () => {
    if (draft.peek() !== after) throw new Error(words.changedSince);
    draft.value = before;
  };
}

/** A text that the user has typed. */
export function typed(name, text) {
  const { base, texts } = draft.peek();
  draft.value = { ...draft.peek(), texts: differing(base, new Map(texts).set(name, text)), isTyped: true };
}

/** What the draft makes of a resource: undefined if nothing, null if it is deleted. */
export function drafted(key) {
  const last = draft.value.operations.findLast((one) => one.put === key || one.delete === key);
  return last && (last.put ? last.value : null);
}

/** The files that have changed: `{name, before, after}`. */
export const changes = computed(() => [...draft.value.texts].map(([name, after]) => (
  { name, before: draft.value.base.files.find((file) => file.name === name)?.text ?? "", after })));

/** What the node says to the draft: `{valid, findings}`. */
export const check = (abort) =>
  call("weir/v1/draft/check", { method: "POST", body: { files: filesOf(draft.peek().texts) }, abort });

/** Writes the files. Throws a `Refusal`; its status is 412 if they have changed since they were read. */
export async function write() {
  const { base, texts } = draft.peek();
  const answer = await call("weir/v1/draft", { method: "PUT", body: { files: filesOf(texts), revision: base.revision } });
  forgetDraft();
  return answer;
}

/** Makes the same operations again on the files as they are now. Throws a `Refusal`, and keeps the draft, if they do not fit. */
export async function again() {
  const before = draft.peek();
  const base = await call("weir/v1/draft");
  const { files } = await call("weir/v1/draft/edit", { method: "POST", body: { operations: before.operations } });
  draft.value = { ...before, base, texts: differing(base, new Map(files.map(({ name, text }) => [name, text]))) };
}
