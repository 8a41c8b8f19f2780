// Numbers and times as they are shown. Times are local, of 24 hours.

const two = (number) => String(number).padStart(2, "0");

/** `2026-03-01 09:30:00` of milliseconds since 1970. */
export function time(ms) {
  const at = new Date(ms);
  return `${day(ms)} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

const STEPS = [[60, "s"], [60, "min"], [24, "h"], [Infinity, "d"]];

/** `3 min` of milliseconds: the greatest unit that it has. */
export function span(ms) {
  let number = Math.max(0, Math.abs(ms) / 1000);
  for (const [size, unit] of STEPS) {
    if (number < size) return `${Math.floor(number)} ${unit}`;
    number /= size;
  }
  return "";
}

/** `3 min ago`, or `in 4 d`. */
export function ago(ms, now = Date.now()) {
  if (Math.abs(now - ms) < 1000) return "now";
  return ms <= now ? `${span(now - ms)} ago` : `in ${span(ms - now)}`;
}

/** Three digits that count: `1.23`, `12.3`, `123`, `12,345`. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const digits = size === 0 || size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** `1.2 MiB` of bytes. */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  let size = value;
  while (size >= 1024 && step < units.length - 1) {
    size /= 1024;
    step += 1;
  }
  return `${number(size)} ${units[step]}`;
}

/** `1 route`, `2 routes`. */
export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
