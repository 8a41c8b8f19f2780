// Maps with any names.

import { rename } from "../document.js";
import { t } from "../texts.js";
import { html, nothing } from "../vendor/ui.js";
import { changed } from "./controls.js";
import { readScalar, written } from "./scalar.js";

/** Names and scalars, a line for each, and an empty one. */
export function pairsControl({ schema, inner, value, path, id }, { set }) {
  const map = value ?? {};
  const text = inner.type === "string";
  const example = Object.entries(schema.examples?.[0] ?? {})[0] ?? ["", ""];
  const row = (name, index) => {
    const shown = text && typeof map[name] === "string" ? map[name] : written(map[name]);
    const write = (now) => set([...path, name], now === "" ? "" : text ? now : readScalar(now));
    return html`<div class="pair">
      <input type="text" class="mono" aria-label=${t.nameOf(index + 1)} autocomplete="off" spellcheck="false" placeholder=${example[0]} .drawn=${name} .value=${name}
        @change=${changed((now, element) => renamed(map, name, now, path, set, element))}>
      <input type="text" class="mono" aria-label=${t.valueOf(name || String(index + 1))} autocomplete="off" spellcheck="false" .drawn=${shown} .value=${shown} @input=${changed(write)}>
      <button type="button" class="quiet" aria-label=${t.removeMember(name)} @click=${() => set([...path, name], undefined)}>×</button></div>`;
  };
  const add = (event) => {
    const name = event.currentTarget.value;
    if (name === "" || name in map) return;
    set([...path, name], text ? "" : 1);
    event.currentTarget.value = "";
  };
  return html`<div class="pairs" role="group" aria-labelledby="${id}-name">${Object.keys(map).map(row)}
    ${"" in map ? nothing : html`<div class="pair new"><input type="text" class="mono" autocomplete="off" spellcheck="false" aria-label=${t.newMember}
      placeholder=${example[0] || t.newMember} @change=${add}></div>`}</div>`;
}

function renamed(map, from, to, path, set, element) {
  if (to in map) {
    element.value = from;
    return;
  }
  set(path, rename(map, from, to));
}

/** Names and maps. */
export function entriesControl({ inner, value, path, id }, context) {
  const map = value ?? {};
  const add = (event) => {
    const name = event.currentTarget.value;
    if (name === "" || name in map) return;
    context.set([...path, name], {});
    event.currentTarget.value = "";
  };
  return html`<div class="items" role="group" aria-labelledby="${id}-name">
    ${Object.entries(map).map(([name, item]) => html`<div class="item"><div class="item-head"><b>${name}</b><span class="grow"></span>
      <button type="button" class="quiet" aria-label=${t.removeMember(name)} @click=${() => context.set([...path, name], undefined)}>×</button></div>
      ${context.control({ schema: inner, value: item, path: [...path, name], id: `${id}/${name}`, label: name }, context)}</div>`)}
    <input type="text" autocomplete="off" spellcheck="false" aria-label=${t.newMember} placeholder=${t.newMember} @change=${add}></div>`;
}
