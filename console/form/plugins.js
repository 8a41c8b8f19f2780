// Plugins: each with its options, and a switch that keeps them.

import { put, same } from "../document.js";
import { prose } from "../parts.js";
import { t } from "../texts.js";
import { html, nothing } from "../vendor/ui.js";
import { picker } from "./picker.js";

/** What a plugin begins with, where its options alone say too little: a small share for one upstream, the rest for that of the route. */
const STARTS = { "traffic-split": { rules: [{ weighted_upstreams: [{ upstream_id: "", weight: 5 }, { weight: 95 }] }] } };

export function pluginsControl({ value, path, id }, context) {
  const map = value ?? {};
  const names = Object.keys(map).sort((one, other) => (context.plugins[other]?.priority ?? 0) - (context.plugins[one]?.priority ?? 0));
  const absent = Object.entries(context.plugins).filter(([name, plugin]) => !(name in map) && (!context.consumer || plugin.consumer_schema));
  return html`<div class="plugins" role="group" aria-labelledby="${id}-name">
    ${names.map((name) => card(name, map[name], [...path, name], context))}
    ${picker({
      id: "add-plugin", label: t.addPlugin, key: "p", search: t.findPlugin,
      options: absent.map(([name, plugin]) => ({ name, about: plugin.schema?.description ?? "" })),
      onPick: (name) => {
        context.set([...path, name], STARTS[name] ?? {});
        focusCard(name);
      },
    })}</div>`;
}

/** The first field of a plugin; its switch, if it has none. */
function focusCard(name) {
  const own = document.querySelector(`.card[aria-label="${CSS.escape(name)}"]`);
  (own?.querySelector(":scope > .members :is(input, select, textarea)") ?? own?.querySelector("header input"))?.focus();
}

function card(name, value, path, context) {
  const plugin = context.plugins[name];
  const isMap = typeof value === "object" && value !== null && !Array.isArray(value);
  const schema = (context.consumer && plugin?.consumer_schema) || plugin?.schema;
  const faults = context.faults.get(`/plugins/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`) ?? [];
  const own = { ...context, root: schema ?? {} };
  // `_meta` has more than a switch only if a user wrote it as text.
  const onlySwitch = same(Object.keys(value?._meta ?? {}), ["disable"]);
  const body = isMap && schema
    ? context.members({ schema, value, path, without: onlySwitch ? ["_meta"] : [] }, own)
    : context.control({ schema: {}, value, path, label: name, id: `f/${path.join("/")}` }, own);
  return html`<section class="card ${value?._meta?.disable ? "off" : ""}" aria-label=${name}>
    <header><b>${name}</b>${plugin ? html`<span class="muted" title=${t.priorityTitle}>${plugin.priority}</span>` : html`<span class="badge bad">${t.unknownPlugin}</span>`}
      <span class="grow"></span>${isMap ? enabled(name, value, path, context) : nothing}
      <button type="button" class="quiet" title=${t.removePlugin(name)} aria-label=${t.removePlugin(name)} @click=${() => context.set(path, undefined)}>×</button></header>
    ${faults.map((text) => html`<p class="fault" role="alert">${prose(text)}</p>`)}
    ${body}</section>`;
}

/** On or off. `_meta` goes with its last member. */
function enabled(name, value, path, context) {
  const drawn = value._meta?.disable !== true;
  const write = (event) => {
    if (event.currentTarget.checked === event.currentTarget.drawn) return;
    const meta = put(value._meta ?? {}, ["disable"], event.currentTarget.checked ? undefined : true);
    context.set([...path, "_meta"], Object.keys(meta).length ? meta : undefined, { toggle: name });
  };
  return html`<label class="onoff"><input type="checkbox" class="switch" role="switch" aria-label=${t.enabledTitle(name)} .drawn=${drawn} .checked=${drawn}
    @change=${write}><span>${drawn ? t.on : t.off}</span></label>`;
}
