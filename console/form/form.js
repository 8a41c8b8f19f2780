// A form for a JSON document, made from its schema. Each control sets or removes one place in the document, only if its text differs
// from the one it was drawn with. What the schema does not know is kept and shown as JSON.

import { pointer } from "../document.js";
import { prose } from "../parts.js";
import { t } from "../texts.js";
import { html, nothing } from "../vendor/ui.js";
import { choiceControl, jsonControl, scalarControl, switchControl, textControl } from "./controls.js";
import { itemsControl, linesControl, severalControl } from "./lists.js";
import { entriesControl, pairsControl } from "./maps.js";
import { pluginsControl } from "./plugins.js";
import { controlFor, resolve } from "./schema.js";

const CONTROLS = {
  switch: switchControl, choice: choiceControl, text: textControl, area: textControl, scalar: scalarControl,
  several: severalControl, lines: linesControl, items: itemsControl, pairs: pairsControl, entries: entriesControl,
  plugins: pluginsControl, members: membersControl, json: jsonControl,
};

/** Below their label, in the whole width. */
const WIDE = new Set(["plugins", "members", "items", "entries"]);
const FEW = 8;

/**
 * `root` has what references are to; `set(path, value)` changes the document; `faults` maps pointers to lists of texts; `plugins` are by
 * name; `main` are the members that are always shown; `references(list)` gives ids.
 */
export function form({ schema, value, set, faults = new Map(), plugins = {}, main = [], references = () => [], shown = new Map(), consumer = false }) {
  const context = { root: schema, set, faults, plugins, references, shown, consumer, field, control, members: membersControl };
  const own = { schema: resolve(schema, schema), value, path: [], main };
  return html`<div class="form">${membersControl(own, context)}</div>`;
}

/** `given` may say `main`, and `label` for a control without a visible one. */
function control(given, context) {
  const found = controlFor(given.schema, given.value, context.root);
  return CONTROLS[found.control]({ ...given, ...found }, context);
}

const idOf = (path) => `f${pointer(path)}`;

/** A member: label, control, description, and what the node says about it. */
function field({ name, schema, value, path, required = false, known = true }, context) {
  const found = known ? controlFor(schema, value, context.root) : { control: "json", schema: {} };
  const own = { ...found, value, path, id: idOf(path), name };
  const faults = context.faults.get(pointer(path)) ?? [];
  const wide = WIDE.has(found.control);
  const isSet = value !== undefined;
  const about = known ? found.schema.description : t.unknownMember;
  return html`<div class="field ${wide ? "wide" : ""} ${isSet ? "set" : ""}" data-pointer=${pointer(path)}>
    <div class="name">
      ${labelled(found.control) ? html`<label for=${own.id}>${name}</label>` : html`<span id="${own.id}-name">${name}</span>`}
      ${required ? html`<span class="muted">${t.required}</span>` : nothing}
      ${found.schema.deprecated ? html`<span class="muted">${t.noEffect}</span>` : nothing}
      ${isSet && !required ? html`<button type="button" class="quiet unset" title=${t.unsetTitle(name)} aria-label=${t.unsetTitle(name)}
        @click=${() => context.set(path, undefined)}>×</button>` : nothing}
    </div>
    <div class="value">
      ${CONTROLS[found.control](own, context)}
      ${about ? html`<p class="about">${prose(about)}</p>` : nothing}
      ${faults.map((text) => html`<p class="fault" role="alert">${prose(text)}</p>`)}
    </div></div>`;
}

const labelled = (name) => !["several", "items", "pairs", "entries", "plugins", "members"].includes(name);

/** A map with known members. Those that matter when it is drawn first are shown, the others folded. */
function membersControl({ schema, value: given, path, main = [], without = [] }, context) {
  const value = given ?? {};
  const known = schema.properties ?? {};
  const place = pointer(path);
  if (!context.shown.has(place)) context.shown.set(place, chosen(schema, value, main, context.root));
  const inFront = context.shown.get(place);
  const required = new Set(schema.required ?? []);
  const names = Object.keys(known).filter((name) => !without.includes(name) && applies(known, name, value, context.root));
  const draw = (name) => context.field({ name, schema: known[name], value: value[name], path: [...path, name], required: required.has(name) }, context);
  const shown = [...inFront].filter((name) => names.includes(name));
  const folded = names.filter((name) => !inFront.has(name));
  const unknown = Object.keys(value).filter((name) => !(name in known) && !without.includes(name));
  const faulty = folded.some((name) => [...context.faults.keys()].some((key) => `${key}/`.startsWith(`${pointer([...path, name])}/`)));
  if (!given && path.length) {
    return html`<details class="more"><summary>${t.options(names.length)}</summary><div class="members">${names.map(draw)}</div></details>`;
  }
  return html`<div class="members">
    ${shown.map(draw)}
    ${unknown.map((name) => context.field({ name, value: value[name], path: [...path, name], known: false }, context))}
    ${folded.length ? html`<details class="more" .open=${faulty || nothing}><summary>${t.moreOptions(folded.length)}</summary>
      <div class="members">${folded.map(draw)}</div></details>` : nothing}
  </div>`;
}

/** The members in front: those that are there, then those required or named; of a map with few, all. */
function chosen(schema, value, main, root) {
  const known = Object.keys(schema.properties ?? {});
  if (known.length <= FEW && main.length === 0) return new Set(known);
  // Of each kind, controls that take much room come last.
  const place = (name) => (name in value ? 0 : 200) + (WIDE.has(controlFor(schema.properties[name], value[name], root).control) ? 100 : 0)
    + (main.includes(name) ? main.indexOf(name) : main.length);
  const wanted = known.filter((name) => name in value || schema.required?.includes(name) || main.includes(name))
    .sort((one, other) => place(one) - place(other));
  return new Set(wanted.length ? wanted : known.filter((name) => !schema.properties[name].deprecated).slice(0, FEW / 2));
}

/** Whether an option has an effect, by those that it depends on. What is there is always shown. */
function applies(known, name, value, root) {
  const conditions = known[name]["x-weir-only-if"];
  if (!conditions || value[name] !== undefined) return true;
  return Object.entries(conditions).every(([other, values]) =>
    values.includes(value[other] ?? resolve(known[other], root).default));
}
