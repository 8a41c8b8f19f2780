// A button that opens a list with a search box, to choose one of many.

import { key as keyboardKey, prose } from "../parts.js";
import { t } from "../texts.js";
import { html, nothing, signal } from "../vendor/ui.js";

/** The open picker and its search: `{id, text, chosen}`. */
const opened = signal(null);

export function openPicker(id) {
  opened.value = { id, text: "", chosen: 0 };
  document.getElementById(`${id}-search`)?.focus();
}

function close(id) {
  opened.value = null;
  document.getElementById(id)?.focus();
}

/** `options` are `{name, about}`; `onPick(name)` is called. */
export function picker({ id, label, key, search, options, onPick }) {
  const now = opened.value?.id === id ? opened.value : null;
  const button = html`<button type="button" id=${id} aria-expanded=${String(now !== null)} @click=${() => (now ? close(id) : openPicker(id))}>${label} ${keyboardKey(key)}</button>`;
  if (!now) return html`<div class="picker">${button}</div>`;
  const text = now.text.toLowerCase();
  const found = options.filter((one) => one.name.includes(text) || one.about.toLowerCase().includes(text))
    .sort((one, other) => other.name.startsWith(text) - one.name.startsWith(text) || other.name.includes(text) - one.name.includes(text));
  const pick = (one) => {
    opened.value = null;
    onPick(one.name);
  };
  const pressed = (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) opened.value = { ...now, chosen: Math.max(0, Math.min(found.length - 1, now.chosen + move)) };
    else if (event.key === "Enter" && found[now.chosen]) pick(found[now.chosen]);
    else if (event.key === "Escape") close(id);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<div class="picker">${button}<div class="popup">
    <input type="search" id="${id}-search" role="combobox" aria-expanded="true" aria-controls="${id}-list" aria-autocomplete="list"
      aria-activedescendant=${found.length ? `${id}-${now.chosen}` : nothing} aria-label=${search} placeholder=${search} autocomplete="off" spellcheck="false"
      .value=${now.text} @input=${(event) => (opened.value = { ...now, text: event.target.value, chosen: 0 })} @keydown=${pressed}>
    <div role="listbox" id="${id}-list" aria-label=${label}>${found.map((one, index) => html`<div role="option" id="${id}-${index}"
      aria-selected=${String(index === now.chosen)} @click=${() => pick(one)}><b>${one.name}</b><span class="muted">${prose(one.about)}</span></div>`)}
      ${found.length ? nothing : html`<div role="option" aria-selected="false" class="muted">${t.nothingFound}</div>`}</div></div></div>`;
}
