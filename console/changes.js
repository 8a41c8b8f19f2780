// Changes of resources. A user can undo a change while its message is shown, unless another user has changed the resource since.

import { call, exchange, Refusal, revision, session } from "./api.js";
import { editable } from "./document.js";
import { draft, drafts } from "./drafts.js";
import { idOf, placeOf } from "./kinds.js";
import { loadMaker } from "./maker.js";
import { tell } from "./notices.js";
import { refresh } from "./tables.js";
import { t } from "./texts.js";
import { signal } from "./vendor/ui.js";

/** The list in which a change was undone last, as `{list}`: a page of one of its resources reads it again. */
export const undone = signal(null);

const ifAt = (index) => ({ "If-Match": `"${index}"` });

/** `{entry, warnings}`: the resource as the node answers it, `{value, modifiedIndex}`. */
export async function readOne(kind, id, abort) {
  const maker = drafts() ? await loadMaker() : null;
  const own = maker?.drafted(`${kind.list}/${id}`);
  if (own === null) throw new Refusal(404, { error_msg: maker.words.deleted });
  if (own === undefined) return call(placeOf(kind, id), { abort });
  return { key: `/apisix/${kind.list}/${id}`, value: own, isDrafted: true };
}

/** Puts operations into the draft, and tells it with what takes them back. */
async function putIntoDraft(kind, operations, text, done) {
  const { change, words } = await loadMaker();
  const back = await change(operations);
  done?.();
  tell(words.inDraft(text), { undo: () => attempt(kind, back, t.undone(text)) });
}

async function put(kind, id, value, headers) {
  const { body, headers: answered } = await exchange(placeOf(kind, id), { method: "PUT", body: value, headers });
  const tag = Number(answered.get("ETag")?.replaceAll('"', ""));
  return { ...body, modifiedIndex: body.modifiedIndex ?? (Number.isNaN(tag) ? revision.peek() : tag) };
}

/** Does something again that can fail, and says so if it does. */
async function attempt(kind, run, text) {
  try {
    await run();
    undone.value = { list: kind.list };
    tell(text);
  } catch (error) {
    tell(error.status === 412 ? t.changedMeanwhile : error.message, { tone: "bad" });
  }
  await refresh(kind.list);
}

/** Saves a resource that was read as `before`. `saved` is called before it is told. Throws a `Refusal`; its status is 412 if another user has saved the resource since. */
export async function save(kind, before, value, saved) {
  const id = idOf(before, kind);
  if (drafts()) {
    const key = `${kind.list}/${id}`;
    return putIntoDraft(kind, [{ put: key, value }], t.saved(id), () => saved?.({ ...before, value, isDrafted: true }));
  }
  const entry = await put(kind, id, value, ifAt(before.modifiedIndex));
  const back = () => attempt(kind, () => put(kind, id, editable(before.value), ifAt(entry.modifiedIndex)), t.undone(id));
  saved?.(entry);
  report(t.saved(id), entry, kind.hidden ? null : back);
  // Not waited for: what was saved can be changed and saved again at once.
  refresh(kind.list);
}

/** Makes a resource; one without an id gets one by chance. Returns its id. */
export async function create(kind, id, value, saved) {
  const known = (kind.self ? value[kind.self] : id) || byChance();
  if (drafts()) {
    const own = (kind.prefix ?? "") + known;
    await putIntoDraft(kind, [{ put: `${kind.list}/${own}`, value }], t.created(own), saved);
    return own;
  }
  const entry = await put(kind, (kind.prefix ?? "") + known, value, { "If-None-Match": "*" });
  const made = idOf(entry, kind);
  saved();
  // Before it is told: its page is shown next.
  await refresh(kind.list);
  report(t.created(made), entry, () => attempt(kind, () => call(placeOf(kind, made), { method: "DELETE" }), t.undone(made)));
  return made;
}

const byChance = () => Array.from(crypto.getRandomValues(new Uint32Array(2)), (part) => part.toString(36)).join("");

function report(text, entry, undo) {
  const warnings = entry.warnings ?? [];
  const words = warnings.map((warning) => warning.problem ?? warning);
  tell(words.length ? `${text}: ${words.join("; ")}` : text, { tone: words.length ? "warn" : "good", undo });
}

/** Deletes resources in one revision. Returns whether it was done; a refusal is told. */
export async function removeAll(kind, ids) {
  try {
    if (drafts()) {
      const text = ids.length === 1 ? t.deleted(ids[0]) : t.deletedMany(ids.length);
      // A resource without an id has its position as its id: the last goes first.
      const position = (id) => Number(/^arr_(\d+)$/.exec(id)?.[1] ?? 0);
      const last = [...ids].sort((one, other) => position(other) - position(one));
      await putIntoDraft(kind, last.map((id) => ({ delete: `${kind.list}/${id}` })), text);
      return true;
    }
    const values = await Promise.all(ids.length > MANY ? [] : ids.map((id) => readOne(kind, id)));
    const operations = ids.map((id) => ({ delete: `${kind.list}/${id}` }));
    const { revision: made } = await call("apisix/admin/configs", { method: "PATCH", body: { operations } });
    const text = ids.length === 1 ? t.deleted(ids[0]) : t.deletedMany(ids.length);
    // Before it is told: the table is shown next.
    await refresh(kind.list);
    tell(text, { undo: undoOf(kind, ids, values, made) });
    return true;
  } catch (error) {
    tell(error.message, { tone: "bad" });
    return false;
  }
}

/** Above this number, the resources are not read before, and the whole revision is rolled back. */
const MANY = 20;

function undoOf(kind, ids, values, made) {
  if (kind.hidden || ids.length > MANY) {
    if (!session.peek().can_rollback) return null;
    return () => attempt(kind, () => rollbackOf(made), t.undone(ids.join(", ")));
  }
  const operations = ids.map((id, index) => ({ put: `${kind.list}/${id}`, value: editable(values[index].value) }));
  return () => attempt(kind, () => call("apisix/admin/configs", { method: "PATCH", body: { operations } }), t.undone(ids.join(", ")));
}

/** Takes back a revision that is still the last one. */
async function rollbackOf(made) {
  const { revision: now } = await call("apisix/admin/history?count=1&brief=true");
  if (now !== made) throw new Error(t.changedMeanwhile);
  await call(`apisix/admin/history/${made - 1}/rollback`, { method: "POST" });
}

/** What the node would say to a change, `{diagnostics, warnings, changes}`; nothing is changed. */
export async function check(kind, id, value, abort) {
  const earlier = drafts() ? draft.peek().operations : [];
  const body = { operations: [...earlier, { put: `${kind.list}/${id}`, value }] };
  try {
    const answer = await call("apisix/admin/configs?dry_run=true", { method: "PATCH", body, abort });
    return { diagnostics: [], warnings: answer.warnings ?? [], changes: answer.changes ?? [] };
  } catch (error) {
    if (error.status !== 400) throw error;
    const only = { path: "", problem: error.message };
    return { diagnostics: error.diagnostics.length ? error.diagnostics : [only], warnings: [], changes: [] };
  }
}

/** The place within the resource that a diagnostic is about, as steps. */
export function placeIn(diagnostic, value) {
  if (diagnostic.pointer !== undefined) return diagnostic.pointer.split("/").slice(1).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));
  const text = /^\S+: (.*)$/.exec(diagnostic.path ?? "")?.[1] ?? "";
  return follow(value, text.split(/\.|\[(\d+)\]/).filter(Boolean));
}

/** The steps as far as the document has them, and one more. */
function follow(value, names) {
  const path = [];
  for (const name of names) {
    path.push(name);
    if (typeof value !== "object" || value === null || !(name in value)) break;
    value = value[name];
  }
  return path;
}
