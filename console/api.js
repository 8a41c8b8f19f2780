// Everything that is asked of the node goes through `call`.

import { signal } from "./vendor/ui.js";

/** As the node describes it; null: logged out; undefined: not known yet. */
export const session = signal(undefined);

/** Of the store, as the last answer said. */
export const revision = signal(null);

const TOKEN = "weir-session";
const root = new URL("../", document.baseURI);

/** `status` is 0 if there was no answer. */
export class Refusal extends Error {
  constructor(status, body) {
    super(body.error_msg ?? body.description ?? body.message ?? `status ${status}`);
    this.status = status;
    this.body = body;
    this.diagnostics = body.diagnostics ?? [];
  }
}

/** The response, whatever its status. */
async function send(path, { method = "GET", body, headers = {}, abort } = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const all = { Accept: "application/json", ...headers };
  if (token) all["X-Weir-Session"] = token;
  if (body !== undefined) all["Content-Type"] = "application/json";
  const text = body === undefined ? undefined : JSON.stringify(body);
  try {
    return await fetch(new URL(path, root), { method, headers: all, body: text, signal: abort, redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { error_msg: "no_answer" });
  }
}

async function read(response) {
  const text = await response.text();
  if (!text) return {};
  try {
    return JSON.parse(text);
  } catch {
    return { error_msg: text.slice(0, 300) };
  }
}

/** The 401 of a role, as Apache APISIX says it: the session is well. */
const forbidsRole = (body) => `${body.description ?? ""}${body.error_msg ?? ""}`.includes("invalid method for role");

async function refuse(response) {
  const body = await read(response);
  if (response.status === 401 && !forbidsRole(body)) ended();
  throw new Refusal(response.status, body);
}

function ended() {
  sessionStorage.removeItem(TOKEN);
  session.value = null;
}

/** The JSON of the answer. Throws a `Refusal`. */
export async function call(path, options) {
  return (await exchange(path, options)).body;
}

/** As `call`, with the header fields of the answer: `{body, headers}`. */
export async function exchange(path, options) {
  const response = await send(path, options);
  if (!response.ok) await refuse(response);
  const now = response.headers.get("X-Weir-Revision");
  if (now) revision.value = Number(now);
  return { body: await read(response), headers: response.headers };
}

/** Calls `onLine` with each line of a stream of JSON, until it or `abort` ends. */
export async function lines(path, onLine, abort) {
  const response = await send(path, { abort });
  if (!response.ok) await refuse(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) onLine(JSON.parse(part));
  }
}

/** Whether the tab still has a session. */
export async function resume() {
  if (!sessionStorage.getItem(TOKEN)) {
    session.value = null;
    return;
  }
  session.value = await call("weir/v1/session");
}

/** Logs in with `{key}` or `{oidc, ticket}`, which is kept nowhere. The token that comes for it is kept in this tab. */
export async function logIn(proof) {
  const response = await send("weir/v1/session", { method: "POST", body: proof });
  const body = await read(response);
  if (!response.ok) throw new Refusal(response.status, body);
  const { token, ...rest } = body;
  sessionStorage.setItem(TOKEN, token);
  session.value = rest;
}

const KEPT = "weir-log-in";

/** Leaves for the identity provider. The session is for what only this tab keeps, of which the node gets the hash. */
export async function leave() {
  const kept = crypto.randomUUID() + crypto.randomUUID();
  sessionStorage.setItem(KEPT, kept + location.hash);
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(kept));
  const page = Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0")).join("");
  location.assign(new URL(`weir/v1/session/oidc?page=${page}`, root));
}

/** Back from the provider. */
export const isBack = () => location.search === "?oidc";

export async function comeBack() {
  const [oidc, place] = (sessionStorage.getItem(KEPT) ?? "-").split("#");
  const ticket = location.hash.slice(1);
  sessionStorage.removeItem(KEPT);
  history.replaceState(null, "", location.pathname);
  location.hash = place ?? "";
  await logIn({ oidc, ticket });
}

export async function logOut() {
  let told;
  try {
    told = await call("weir/v1/session", { method: "DELETE" });
  } finally {
    ended();
  }
  if (told.end_session) location.assign(told.end_session);
}

/** What the log-in page shows. */
export const hint = () => call("weir/v1/session/hint");

/** True if the node offers what a screen needs. */
export const has = (feature) => session.value?.features?.includes(feature) ?? false;
