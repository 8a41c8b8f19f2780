// The schemas of resources and plugins, as this node has them. They are read once for each log-in.

import { call } from "./api.js";

const kept = new Map();

function once(path) {
  if (!kept.has(path)) {
    const answer = call(path);
    kept.set(path, answer);
    answer.catch(() => kept.delete(path));
  }
  return kept.get(path);
}

/** The schema of a kind of resource. */
export const schemaOf = (kind) => once(`apisix/admin/schema/${kind.schema}`);

/** All plugins by name: `{priority, schema, consumer_schema?}`. */
export const plugins = () => once("apisix/admin/plugins?all=true");

export const forgetSchemas = () => kept.clear();
