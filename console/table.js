// A table of any number of rows. As many elements are drawn as fit on the screen; row i stands in element i modulo their number,
// moved by `transform`, so that scrolling moves no element within the tree.

import { t } from "./texts.js";
import { html, nothing, render } from "./vendor/ui.js";

const ROW_PX = 36;
const BEYOND = 6;

/**
 * Properties: `rows`, each with an `id`; `columns`: `{key, title, width, rank, cell(row), sort?(row), align?}`, those of a high rank not
 * where the table is narrow; `label`; `order`: `key` or `-key`; `selected`: a set of ids, or null. Calls `onOpen(row)`, `onOrder(order)`,
 * `onSelect(set)`.
 */
class Table extends HTMLElement {
  #rows = [];
  #given = [];
  #columns = [];
  #current = -1;
  #drawn = 0;
  #order = "";

  label = "";
  selected = null;
  onOpen = () => {};
  onOrder = null;
  onSelect = null;

  set rows(rows) {
    if (rows === this.#given) return;
    const current = this.#rows[this.#current]?.id;
    this.#given = rows;
    this.#arrange();
    this.#current = current === undefined ? -1 : this.#rows.findIndex((row) => row.id === current);
    this.#later();
  }

  set columns(columns) {
    this.#columns = columns;
    this.#arrange();
    this.#later();
  }

  set order(order) {
    if (order === this.#order) return;
    this.#order = order;
    this.#arrange();
    this.#later();
  }

  /** The row that the keyboard is at. */
  get current() {
    return this.#rows[this.#current];
  }

  get shown() {
    return this.#rows;
  }

  connectedCallback() {
    this.resize = new ResizeObserver(() => this.#draw());
    this.resize.observe(this);
    this.addEventListener("scroll", () => this.#later(), { passive: true });
    this.addEventListener("keydown", (event) => this.#key(event));
    this.#draw();
  }

  disconnectedCallback() {
    this.resize.disconnect();
  }

  update() {
    this.#later();
  }

  /** Moves the keyboard's row by a number of rows and shows it. */
  move(by) {
    if (this.#rows.length === 0) return;
    this.#current = Math.max(0, Math.min(this.#rows.length - 1, this.#current < 0 && by > 0 ? 0 : this.#current + by));
    const top = this.#current * ROW_PX;
    const height = this.clientHeight - ROW_PX;
    if (top < this.scrollTop) this.scrollTop = top;
    else if (top + ROW_PX > this.scrollTop + height) this.scrollTop = top + ROW_PX - height;
    this.#draw();
  }

  toggle(row) {
    if (!this.selected || !row) return;
    const next = new Set(this.selected);
    if (!next.delete(row.id)) next.add(row.id);
    this.onSelect(next);
  }

  #arrange() {
    const name = this.#order.replace(/^-/, "");
    const column = this.#columns.find((column) => column.key === name);
    if (!column) {
      this.#rows = this.#given;
      return;
    }
    const by = column.sort ?? ((row) => row[name]);
    const keyed = this.#given.map((row) => [by(row), row]);
    const sign = this.#order.startsWith("-") ? -1 : 1;
    keyed.sort(([one], [other]) => sign * compare(one, other));
    this.#rows = keyed.map(([, row]) => row);
  }

  #later() {
    if (this.#drawn) return;
    this.#drawn = requestAnimationFrame(() => {
      this.#drawn = 0;
      if (this.isConnected) this.#draw();
    });
  }

  #key(event) {
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this.move(moves[event.key]);
    else if (event.key === "Enter" && event.target === this && this.current) this.onOpen(this.current);
    else if (event.key === "x" && this.selected) this.toggle(this.current);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #draw() {
    const wide = this.clientWidth;
    const columns = this.#columns.filter((column) => wide >= (MIN_PX[column.rank ?? 1] ?? 0));
    const tracks = [this.selected ? "32px" : "", ...columns.map((column) => column.width)].filter(Boolean).join(" ");
    const count = Math.min(this.#rows.length, Math.ceil(Math.max(this.clientHeight, 200) / ROW_PX) + 2 * BEYOND);
    const first = Math.max(0, Math.min(Math.floor(this.scrollTop / ROW_PX) - BEYOND, this.#rows.length - count));
    this.setAttribute("role", "grid");
    this.setAttribute("tabindex", "0");
    this.setAttribute("aria-label", this.label);
    this.setAttribute("aria-rowcount", String(this.#rows.length + 1));
    this.setAttribute("aria-multiselectable", String(this.selected !== null));
    const active = this.#current >= first && this.#current < first + count ? `${this.id}-${this.#current % count}` : null;
    if (active) this.setAttribute("aria-activedescendant", active);
    else this.removeAttribute("aria-activedescendant");
    const slots = Array.from({ length: count }, (_, slot) => {
      const index = first + ((slot - (first % count) + count) % count);
      return this.#row(index, slot, columns, tracks);
    });
    render(html`
      <div class="head" role="rowgroup"><div class="row" role="row" aria-rowindex="1" .style=${`grid-template-columns: ${tracks}`}>
        ${this.selected ? html`<span role="columnheader">${this.#all()}</span>` : nothing}
        ${columns.map((column) => this.#header(column))}
      </div></div>
      <div class="body" role="rowgroup" .style=${`height: ${this.#rows.length * ROW_PX}px`}>${slots}</div>`, this);
  }

  #all() {
    const all = this.#rows.length > 0 && this.selected.size === this.#rows.length;
    return html`<input type="checkbox" aria-label=${t.selectAll} .checked=${all}
      @change=${() => this.onSelect(new Set(all ? [] : this.#rows.map((row) => row.id)))}>`;
  }

  #header(column) {
    const now = this.#order === column.key ? "ascending" : this.#order === `-${column.key}` ? "descending" : "none";
    const next = now === "ascending" ? `-${column.key}` : column.key;
    return html`<span role="columnheader" class=${column.align ?? ""} aria-sort=${now}>${this.onOrder && column.sort !== null
      ? html`<button type="button" @click=${() => this.onOrder(next)}>${column.title}<i class=${now}></i></button>`
      : column.title}</span>`;
  }

  #row(index, slot, columns, tracks) {
    const row = this.#rows[index];
    const picked = this.selected?.has(row.id) ?? false;
    return html`<div class="row ${index === this.#current ? "current" : ""} ${row.tone ?? ""}" role="row" id="${this.id}-${slot}"
        aria-rowindex=${index + 2} aria-selected=${this.selected ? String(picked) : nothing}
        .style=${`grid-template-columns: ${tracks}; transform: translateY(${index * ROW_PX}px)`}
        @click=${(event) => this.#click(event, row, index)}>
      ${this.selected ? html`<span role="gridcell"><input type="checkbox" tabindex="-1" .checked=${picked}
        aria-label=${t.select(row.id)} @change=${() => this.toggle(row)}></span>` : nothing}
      ${columns.map((column) => html`<span role="gridcell" class=${column.align ?? ""}>${column.cell(row)}</span>`)}
    </div>`;
  }

  #click(event, row, index) {
    if (event.target.closest("a, button, input, select")) return;
    this.#current = index;
    this.onOpen(row);
  }
}

/** How wide a table has to be for the columns of each rank. */
const MIN_PX = { 1: 0, 2: 480, 3: 760, 4: 1040 };

const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Absent values come last in both directions; numbers by size, lists by their texts. */
function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return 1;
  if (other === null || other === undefined) return -1;
  if (typeof one === "number" && typeof other === "number") return one - other;
  return COLLATOR.compare(String(one), String(other));
}

customElements.define("weir-table", Table);
