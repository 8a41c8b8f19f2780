// The columns of tables.

import { ago, count, day, span } from "./format.js";
import { badge, labels } from "./parts.js";
import { href } from "./router.js";
import { t } from "./texts.js";
import { html, nothing } from "./vendor/ui.js";

const dash = html`<span class="muted">–</span>`;
const many = (list) => (list?.length ? html`<span class="mono" title=${list.join("\n")}>${list[0]}${list.length > 1 ? html` <span class="muted">+${list.length - 1}</span>` : nothing}</span>` : dash);

/** A reference as a link: `upstreams/orders`. */
export function reference(text) {
  const [list, ...id] = String(text).split("/");
  return id.length ? html`<a class="mono" href=${href(list, id.join("/"))}>${text}</a>` : html`<span class="muted">${text}</span>`;
}

const first = (member) => (row) => row[member]?.[0];

const COLUMNS = {
  paths: { title: t.columns.paths, width: "minmax(120px, 3fr)", cell: (row) => many(row.uris), sort: first("uris") },
  hosts: { title: t.columns.hosts, width: "minmax(100px, 2fr)", rank: 3, cell: (row) => many(row.hosts), sort: first("hosts") },
  methods: { title: t.columns.methods, width: "minmax(70px, 1fr)", rank: 4, cell: (row) => many(row.methods), sort: first("methods") },
  priority: { title: t.columns.priority, width: "72px", rank: 4, align: "right", cell: (row) => row.priority ?? 0, sort: (row) => row.priority ?? 0 },
  target: { title: t.columns.target, width: "minmax(110px, 2fr)", rank: 3, cell: (row) => (row.target ? reference(row.target) : dash), sort: (row) => row.target },
  plugins: { title: t.columns.plugins, width: "minmax(90px, 2fr)", rank: 2, cell: (row) => many(row.plugins), sort: first("plugins") },
  type: { title: t.columns.type, width: "minmax(90px, 1fr)", rank: 2, cell: (row) => row.type ?? dash },
  scheme: { title: t.columns.scheme, width: "minmax(60px, 1fr)", rank: 3, cell: (row) => row.scheme ?? dash },
  nodes: { title: t.columns.nodes, width: "72px", align: "right", cell: (row) => (row.discovery_type ? row.discovery_type : (row.nodes ?? 0)), sort: (row) => row.nodes },
  group_id: { title: t.columns.group, width: "minmax(90px, 1fr)", rank: 2, cell: (row) => (row.group_id ? reference(`consumer_groups/${row.group_id}`) : dash) },
  snis: { title: t.columns.names, width: "minmax(120px, 3fr)", cell: (row) => many(row.snis), sort: first("snis") },
  ssl_type: { title: t.columns.use, width: "minmax(60px, 1fr)", rank: 3, cell: (row) => row.ssl_type ?? dash },
  not_after: { title: t.columns.ends, width: "minmax(90px, 1fr)", rank: 2, cell: (row) => (row.not_after_ms ? validity(row.not_after_ms) : dash), sort: (row) => row.not_after_ms },
};

const SOON_MS = 14 * 86_400_000;

/** What is renewed within its last hour is late rather than soon. */
const LATE_MS = 600_000;

/** With a tone if that is soon. */
export function validity(ms, origin) {
  const left = ms - Date.now();
  const tone = left < 0 ? "bad" : left < (origin === "spiffe" ? LATE_MS : SOON_MS) ? "warn" : "";
  return html`<span title=${day(ms)}>${badge(left < 0 ? t.expired(span(left)) : t.endsIn(span(left)), tone)}</span>`;
}

function name(kind) {
  return {
    key: "id", title: t.columns.id, width: "minmax(110px, 2fr)", sort: (row) => row.id,
    cell: (row) => html`<a href=${href(kind.list, row.id)}>${row.id}</a>${row.status === 0 ? html` ${badge(t.off)}` : nothing}
      ${row.name && row.name !== row.id ? html`<span class="muted after">${row.name}</span>` : nothing}`,
  };
}

/** The columns of a kind's table. */
export const cells = (kind) => [
  name(kind),
  ...kind.columns.map((key) => ({ key, ...COLUMNS[key] })),
  { key: "labels", title: t.columns.labels, width: "minmax(90px, 2fr)", rank: 4, cell: (row) => labels(row.labels), sort: (row) => Object.entries(row.labels ?? {}).join() || null },
  { key: "updated", title: t.columns.changed, width: "88px", rank: 2, align: "right", cell: (row) => (row.updated ? html`<span class="muted">${ago(row.updated * 1000)}</span>` : dash) },
];

export const resources = (number, words) => count(number, words.one.toLowerCase(), words.many.toLowerCase());
