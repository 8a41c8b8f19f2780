// The kinds of resources: one entry each, from which menu, tables, pages and links follow.

import { t } from "./texts.js";

/**
 * `list`: the name in the Admin API; `schema`: that of its schema; `go`: the letter after `g`; `columns`: beside id, labels and changed;
 * `main`: members that a form always shows; `start`: a new resource; `self`: the member with the id, if it is not `id`; `hidden`:
 * answers leave parts out, so that a deleted one cannot be written again from here.
 */
export const KINDS = [
  {
    list: "routes", schema: "route", go: "r", columns: ["paths", "hosts", "methods", "priority", "target", "plugins"],
    main: ["uri", "methods", "host", "upstream", "upstream_id", "service_id", "plugins"],
    start: () => ({ uri: "", upstream: { nodes: { "": 1 } } }),
  },
  {
    list: "services", schema: "service", go: "s", columns: ["hosts", "target", "plugins"],
    main: ["hosts", "upstream", "upstream_id", "plugins"], start: () => ({ upstream: { nodes: { "": 1 } } }),
  },
  {
    list: "upstreams", schema: "upstream", go: "u", columns: ["type", "scheme", "nodes"],
    main: ["nodes", "type", "scheme"], start: () => ({ nodes: { "": 1 } }),
  },
  {
    list: "consumers", schema: "consumer", go: "c", columns: ["group_id", "plugins"], self: "username",
    main: ["username", "plugins"], start: () => ({ username: "", plugins: { "key-auth": { key: "" } } }),
  },
  {
    list: "ssls", schema: "ssl", go: "t", columns: ["snis", "ssl_type", "not_after"], hidden: true,
    main: ["snis", "cert", "key"], start: () => ({ snis: [], cert: "", key: "" }),
  },
  {
    list: "plugin_configs", schema: "plugin_config", go: "k", columns: ["plugins"], main: ["plugins"],
    start: () => ({ plugins: {} }),
  },
  {
    list: "global_rules", schema: "global_rule", go: "b", columns: ["plugins"], main: ["plugins"],
    start: () => ({ plugins: {} }),
  },
  {
    list: "consumer_groups", schema: "consumer_group", go: "j", columns: ["plugins"], main: ["plugins"],
    start: () => ({ plugins: {} }),
  },
  {
    list: "secrets", schema: "secret", go: "v", columns: [], hidden: true, main: ["uri", "prefix", "token"],
    start: () => ({ uri: "", prefix: "", token: "" }), prefix: "vault/",
  },
];

export const kindOf = (list) => KINDS.find((kind) => kind.list === list);

/** The words for a kind: `{one, many, about}`. */
export const wordsOf = (kind) => t.kinds[kind.list];

/** The place of a resource in the Admin API. */
export const placeOf = (kind, id) => `apisix/admin/${kind.list}/${id.split("/").map(encodeURIComponent).join("/")}`;

/** The id of a resource as the node answers it. */
export const idOf = (entry, kind) => entry.key.split(`/${kind.list}/`).slice(1).join(`/${kind.list}/`);
