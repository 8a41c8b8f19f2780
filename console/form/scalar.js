// How scalars are written in a box of one line, and read back.

/** In a box for several kinds: a number is bare, a text that looks like one is in quotes. */
export function written(value) {
  if (value === undefined) return "";
  if (typeof value !== "string") return JSON.stringify(value);
  return looksLikeJson(value) ? JSON.stringify(value) : value;
}

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
