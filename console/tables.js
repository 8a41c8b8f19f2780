// The tables of resources: each is read once, and only its changes after that.

import { call } from "./api.js";
import { signal } from "./vendor/ui.js";

const tables = new Map();

/** The table of a kind: a signal of `{rows, revision, error}`. `rows` is undefined until it has been read. */
export function table(kind) {
  if (!tables.has(kind)) tables.set(kind, signal({ rows: undefined, revision: null, error: null }));
  return tables.get(kind);
}

const running = new Map();

/** Reads what has changed. Calls at the same time share one request. */
export function refresh(kind) {
  if (!running.has(kind)) running.set(kind, readChanges(kind).finally(() => running.delete(kind)));
  return running.get(kind);
}

/** The same for all tables of this tab. */
export const refreshAll = () => Promise.all([...tables.keys()].map(refresh));

export function forget() {
  tables.clear();
}

async function readChanges(kind) {
  const own = table(kind);
  const before = own.peek();
  try {
    const since = before.revision === null ? "" : `?since=${before.revision}`;
    const answer = await call(`weir/v1/table/${kind}${since}`);
    const changed = answer.rows.map((row) => record(answer.columns, row));
    const rows = answer.since === null || answer.since === undefined ? changed : merged(before.rows, changed, answer.removed);
    own.value = { rows, revision: answer.revision, error: null };
  } catch (error) {
    own.value = { ...before, error };
  }
}

function merged(rows, changed, removed) {
  if (changed.length === 0 && removed.length === 0) return rows;
  const gone = new Set([...removed, ...changed.map((row) => row.id)]);
  return [...rows.filter((row) => !gone.has(row.id)), ...changed];
}

/** A row by the names of its columns, and the text in which a search looks. */
function record(columns, row) {
  const named = Object.fromEntries(columns.map((column, index) => [column, row[index]]));
  named.text = row.map(words).join("\n").toLowerCase();
  return named;
}

function words(value) {
  if (Array.isArray(value)) return value.join(" ");
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return Object.entries(value).map(([name, text]) => `${name}:${text}`).join(" ");
  return String(value);
}

/** The rows in which every word of the search occurs. */
export function search(rows, text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length === 0) return rows;
  return rows.filter((row) => wanted.every((word) => row.text.includes(word)));
}
