import { pointer } from "../document.js";
import { t } from "../texts.js";
import { html, nothing } from "../vendor/ui.js";
import { changed, placeholder } from "./controls.js";
import { resolve } from "./schema.js";
import { written } from "./scalar.js";

/** Some of several choices, in the order of the document. */
export function severalControl({ list, value = [], path, id }, { set }) {
  const toggle = (one, on) => {
    const next = on ? [...value, one] : value.filter((other) => other !== one);
    set(path, next.length ? next : undefined);
  };
  return html`<div class="chips" role="group" aria-labelledby="${id}-name">${list.map(({ value: one, about }) => {
    const drawn = value.includes(one);
    return html`<label class="chip" title=${about || nothing}><input type="checkbox" .drawn=${drawn} .checked=${drawn}
      @change=${(event) => event.currentTarget.checked !== event.currentTarget.drawn && toggle(one, event.currentTarget.checked)}>${written(one)}</label>`;
  })}</div>`;
}

/** Texts, one on each line. */
export function linesControl({ schema, value, path, id, label }, { set }) {
  const text = (value ?? []).join("\n");
  const read = (now) => now.split("\n").map((line) => line.trim()).filter(Boolean);
  const example = placeholder({ ...schema, examples: schema.examples?.[0] ? [schema.examples[0].join?.(", ")] : [] });
  return html`<textarea id=${id} class="lines" rows=${Math.min(10, Math.max(1, (value ?? []).length + 1))} spellcheck="false"
    placeholder=${example || t.onePerLine} aria-label=${label ?? nothing} .drawn=${text} .value=${text}
    @input=${changed((now) => set(path, read(now).length ? read(now) : undefined))}></textarea>`;
}

/** Of anything else: each item with its own control. */
export function itemsControl({ items, value = [], path, id }, context) {
  const place = (index) => [...path, index];
  const change = (next) => {
    forget(context.shown, path);
    context.set(path, next);
  };
  const move = (index, by) => {
    const next = [...value];
    next.splice(index + by, 0, ...next.splice(index, 1));
    change(next);
  };
  return html`<div class="items" role="group" aria-labelledby="${id}-name">
    ${value.map((item, index) => html`<div class="item"><div class="item-head"><span class="muted">${index + 1}</span><span class="grow"></span>
      <button type="button" class="quiet" aria-label=${t.moveUp(index + 1)} ?disabled=${index === 0} @click=${() => move(index, -1)}>↑</button>
      <button type="button" class="quiet" aria-label=${t.moveDown(index + 1)} ?disabled=${index === value.length - 1} @click=${() => move(index, 1)}>↓</button>
      <button type="button" class="quiet" aria-label=${t.removeItem(index + 1)} @click=${() => change(value.filter((_, at) => at !== index))}>×</button></div>
      ${context.control({ schema: items, value: item, path: place(index), id: `${id}/${index}`, label: t.item(index + 1) }, context)}</div>`)}
    <button type="button" @click=${() => context.set(path, [...value, first(items, context.root)])}>${t.addItem}</button></div>`;
}

/** What an item begins as. */
function first(schema, root) {
  const own = resolve(schema, root);
  const branch = own.oneOf ?? own.anyOf;
  const kind = branch ? resolve(branch[0], root).type : own.type;
  if (kind === "object") return {};
  if (kind === "array") return [];
  return kind === "integer" || kind === "number" ? 0 : "";
}

/** Which members of moved items are shown is found anew. */
function forget(shown, path) {
  const begin = `${pointer(path)}/`;
  for (const key of [...shown.keys()]) if (key.startsWith(begin)) shown.delete(key);
}
