// Curves over time, and a table of them for those who do not see curves.

import { clock, number } from "./format.js";
import { colour, scheme } from "./scheme.js";
import { t } from "./texts.js";
import { Plot } from "./vendor/plot.js";
import { effect, html, render } from "./vendor/ui.js";

const HEIGHT_PX = 150;
/** Values of the curve for each row of the table. */
const ROWS = 12;
/** Distances of marks on the axis of time. */
const WHOLE_MINUTES_S = [60, 120, 300, 600, 900, 1800, 3600];

/** Properties: `data`: `[times in seconds, values …]`; `series`: `{label, token}` for each list of values; `label`. */
class PlotElement extends HTMLElement {
  #data = null;
  #plot = null;
  #stop = null;
  #resize = null;

  series = [];
  label = "";

  set data(data) {
    this.#data = data;
    if (this.#plot) this.#plot.setData(data);
  }

  connectedCallback() {
    this.setAttribute("role", "img");
    this.setAttribute("aria-label", this.label);
    // The canvas has its colours drawn in.
    this.#stop = effect(() => void (scheme.value, this.#make()));
    this.#resize = new ResizeObserver(() => this.#plot.setSize({ width: Math.max(120, this.clientWidth), height: HEIGHT_PX }));
    this.#resize.observe(this);
  }

  disconnectedCallback() {
    this.#stop();
    this.#resize.disconnect();
    this.#plot.destroy();
    this.#plot = null;
  }

  #make() {
    this.#plot?.destroy();
    const reading = document.createElement("div");
    reading.className = "reading";
    this.replaceChildren(reading);
    const axis = { stroke: colour("muted"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.#plot = new Plot({
      width: Math.max(120, this.clientWidth), height: HEIGHT_PX, legend: { show: false }, padding: [6, 14, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 0.001)] } },
      axes: [
        { ...axis, space: 60, size: 24, incrs: WHOLE_MINUTES_S, values: (_, times) => times.map((time) => clock(time * 1000).slice(0, 5)) },
        { ...axis, size: 44, values: (_, ticks) => ticks.map((tick) => number(tick)) },
      ],
      series: [{}, ...this.series.map(({ token, label }) => ({ label, stroke: colour(token), width: 1.5, points: { show: false }, spanGaps: false }))],
      hooks: { setCursor: [(plot) => this.#read(plot, reading)] },
    }, this.#data ?? [[], ...this.series.map(() => [])], this);
    this.#read(this.#plot, reading);
  }

  /** The values below the pointer, or the last ones. */
  #read(plot, into) {
    const at = plot.cursor.idx ?? (plot.data[0].length - 1);
    if (at < 0) return;
    render(html`<span>${clock(plot.data[0][at] * 1000)}</span>${this.series.map(({ label, token }, index) => html`<span><i .style=${`background: var(--${token})`}></i>${label} ${number(plot.data[index + 1][at])}</span>`)}`, into);
  }
}

customElements.define("weir-plot", PlotElement);

/** Values at regular distances, the newest first. */
export function values(data, series, label) {
  const step = Math.max(1, Math.floor(data[0].length / ROWS));
  const rows = data[0].map((_, index) => index).filter((index) => (data[0].length - 1 - index) % step === 0).reverse();
  return html`<details class="values"><summary>${t.overview.values}</summary><div tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr><th>${t.overview.time}</th>${series.map((one) => html`<th class="right">${one.label}</th>`)}</tr></thead>
    <tbody>${rows.map((index) => html`<tr><td>${clock(data[0][index] * 1000)}</td>${series.map((_, column) => html`<td class="right">${number(data[column + 1][index])}</td>`)}</tr>`)}</tbody></table></div></details>`;
}
