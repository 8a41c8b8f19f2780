// How scalars are written in a box of one line, and read back.

/** The text of a value in a box that takes several kinds: a number is bare, a text that looks like one stands in quotes. */
export function written(value) {
  if (value === undefined) return "";
  if (typeof value !== "string") return JSON.stringify(value);
  return looksLikeJson(value) ? JSON.stringify(value) : value;
}

/** The value that such a text stands for. */
export function readScalar(text) {
  if (text === "") return undefined;
  if (!looksLikeJson(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const looksLikeJson = (text) => /^(true|false|null|-?\d[\d.eE+-]*|"[^]*)$/.test(text.trim()) || text.trim() !== text || text === "";
