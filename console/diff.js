// What has changed between two texts, line by line, with three lines around each change.

import { pretty } from "./document.js";
import { t } from "./texts.js";
import { html, nothing } from "./vendor/ui.js";

const AROUND = 3;
/** Beyond so many pairs of lines, the middle is replaced whole. */
const MOST_PAIRS = 4_000_000;

/** The lines of both as `{mark, text}`, where `mark` is ` `, `-` or `+`. */
export function compare(before, after) {
  const old = before === "" ? [] : before.split("\n");
  const now = after === "" ? [] : after.split("\n");
  let begin = 0;
  while (begin < old.length && begin < now.length && old[begin] === now[begin]) begin += 1;
  let end = 0;
  while (end < old.length - begin && end < now.length - begin && old.at(-1 - end) === now.at(-1 - end)) end += 1;
  const same = (text) => ({ mark: " ", text });
  return [
    ...old.slice(0, begin).map(same),
    ...middle(old.slice(begin, old.length - end), now.slice(begin, now.length - end)),
    ...old.slice(old.length - end).map(same),
  ];
}

/** By the longest common subsequence. */
function middle(old, now) {
  const removed = (text) => ({ mark: "-", text });
  const added = (text) => ({ mark: "+", text });
  if (old.length * now.length > MOST_PAIRS) return [...old.map(removed), ...now.map(added)];
  const wide = now.length + 1;
  const length = new Uint32Array((old.length + 1) * wide);
  for (let row = old.length - 1; row >= 0; row -= 1) {
    for (let column = now.length - 1; column >= 0; column -= 1) {
      length[row * wide + column] = old[row] === now[column]
        ? length[(row + 1) * wide + column + 1] + 1
        : Math.max(length[(row + 1) * wide + column], length[row * wide + column + 1]);
    }
  }
  const lines = [];
  let [row, column] = [0, 0];
  while (row < old.length || column < now.length) {
    if (row < old.length && column < now.length && old[row] === now[column]) {
      lines.push({ mark: " ", text: old[row] });
      row += 1;
      column += 1;
    } else if (column >= now.length || (row < old.length && length[(row + 1) * wide + column] >= length[row * wide + column + 1])) {
      lines.push(removed(old[row]));
      row += 1;
    } else {
      lines.push(added(now[column]));
      column += 1;
    }
  }
  return lines;
}

/** Leaves out lines that are far from any change. */
function nearby(lines) {
  const near = new Uint8Array(lines.length);
  lines.forEach((line, index) => {
    if (line.mark !== " ") near.fill(1, Math.max(0, index - AROUND), index + AROUND + 1);
  });
  const shown = [];
  lines.forEach((line, index) => {
    if (near[index]) shown.push(line);
    else if (shown.length && shown.at(-1).mark !== "…") shown.push({ mark: "…", text: "" });
  });
  return shown;
}

const CLASSES = { "-": "removed", "+": "added", " ": "", "…": "gap" };
const SPOKEN = { "-": t.removedLine, "+": t.addedLine };

export function diffText(before, after, label = t.difference) {
  const lines = nearby(compare(before, after));
  if (lines.length === 0) return html`<p class="muted">${t.noDifference}</p>`;
  return html`<div class="diff" role="group" aria-label=${label} tabindex="0">${lines.map(({ mark, text }) => html`<div class=${CLASSES[mark]}>
    <i aria-hidden="true">${mark}</i>${SPOKEN[mark] ? html`<span class="hidden">${SPOKEN[mark]}</span>` : nothing}<span>${text}</span></div>`)}</div>`;
}

/** Names of members are in one order, so that moved ones are no change. */
export const diff = (before, after, label) => diffText(text(before), text(after), label);

const text = (value) => (value === undefined || value === null ? "" : pretty(ordered(value)));

function ordered(value) {
  if (Array.isArray(value)) return value.map(ordered);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, ordered(value[name])]));
}
