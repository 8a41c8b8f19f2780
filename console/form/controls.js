// Controls of one value. `set` is called only if the text differs from the one that was drawn.

import { pretty } from "../document.js";
import { t } from "../texts.js";
import { html, nothing } from "../vendor/ui.js";
import { readScalar, written } from "./scalar.js";

/** In an empty box: the default, what holds without the member, or an example. */
export function placeholder(schema) {
  if (schema.default !== undefined && schema.default !== null) return written(schema.default);
  if (schema["x-weir-absent"]) return schema["x-weir-absent"].replaceAll("`", "");
  return schema.examples?.length ? t.example(written(schema.examples[0])) : "";
}

/** Calls `write(text)` if the text is another one than was drawn. */
export const changed = (write) => (event) => {
  const element = event.currentTarget;
  if (element.value !== element.drawn) write(element.value, element);
};

export function textControl({ control, schema, value, path, id, label }, { set }) {
  const text = value ?? "";
  const write = changed((now) => set(path, now === "" ? undefined : now));
  const shared = { placeholder: placeholder(schema), label: label ?? nothing };
  if (control === "area") {
    return html`<textarea id=${id} rows=${Math.min(12, Math.max(3, text.split("\n").length))} spellcheck="false" placeholder=${shared.placeholder}
      aria-label=${shared.label} .drawn=${text} .value=${text} @input=${write}></textarea>`;
  }
  return html`<input id=${id} type="text" autocomplete="off" spellcheck="false" placeholder=${shared.placeholder} aria-label=${shared.label}
    .drawn=${text} .value=${text} @input=${write}>`;
}

/** A number, or a value of several kinds. */
export function scalarControl({ schema, value, path, id, label }, { set, references }) {
  const text = written(value);
  const numeric = schema.type === "integer" || schema.type === "number";
  const ids = references(schema["x-weir-reference"]);
  return html`<span class="measured"><input id=${id} type="text" inputmode=${numeric ? "decimal" : nothing} autocomplete="off" spellcheck="false"
      class=${numeric ? "short" : nothing} list=${ids.length ? `${id}-known` : nothing} placeholder=${placeholder(schema)} aria-label=${label ?? nothing}
      .drawn=${text} .value=${text} @input=${changed((now) => set(path, readScalar(now)))}>
    ${schema["x-weir-unit"] ? html`<span class="muted">${schema["x-weir-unit"]}</span>` : nothing}</span>${known(ids, id)}`;
}

const known = (ids, id) =>
  ids.length ? html`<datalist id="${id}-known">${ids.map((one) => html`<option value=${one}></option>`)}</datalist>` : nothing;

export function switchControl({ schema, value, path, id, label }, { set }) {
  const drawn = value ?? schema.default ?? false;
  return html`<input id=${id} type="checkbox" class="switch" role="switch" aria-label=${label ?? nothing} .drawn=${drawn} .checked=${drawn}
    @change=${(event) => event.currentTarget.checked !== event.currentTarget.drawn && set(path, event.currentTarget.checked)}>
    ${value === undefined ? html`<span class="muted">${t.byDefault}</span>` : nothing}`;
}

export function choiceControl({ schema, list, value, path, id, label }, { set }) {
  const at = list.findIndex((one) => one.value === value);
  const drawn = String(at);
  const fallback = schema.default ?? schema["x-weir-absent"];
  const about = list[at]?.about;
  return html`<select id=${id} aria-label=${label ?? nothing} .drawn=${drawn} .value=${drawn}
      @change=${changed((now) => set(path, now === "-1" ? undefined : list[Number(now)].value))}>
    <option value="-1" ?selected=${at < 0}>${fallback === undefined ? t.notSet : t.defaultIs(written(fallback).replaceAll("`", ""))}</option>
    ${list.map((one, index) => html`<option value=${String(index)} ?selected=${index === at}>${written(one.value)}</option>`)}
  </select>${about ? html`<p class="about">${about}</p>` : nothing}`;
}

/** As JSON. What cannot be read is not written. */
export function jsonControl({ schema, value, path, id, label }, { set }) {
  const text = pretty(value);
  const write = (element) => {
    if (element.value === element.drawn) return;
    let read;
    try {
      read = element.value.trim() === "" ? undefined : JSON.parse(element.value);
    } catch (error) {
      element.setCustomValidity(error.message);
      element.reportValidity();
      return;
    }
    element.setCustomValidity("");
    set(path, read);
  };
  const example = schema?.examples?.length ? t.example(JSON.stringify(schema.examples[0])) : t.anyJson;
  return html`<textarea id=${id} class="mono" rows=${Math.min(12, Math.max(2, text.split("\n").length))} spellcheck="false" placeholder=${example}
    aria-label=${label ?? nothing} .drawn=${text} .value=${text} @change=${(event) => write(event.currentTarget)}></textarea>`;
}
