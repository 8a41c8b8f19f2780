// Places in JSON documents, as lists of member names and positions. Documents are values: a change makes a new one.

/** What stands at a place; undefined if nothing does. */
export function at(document, path) {
  return path.reduce((value, step) => (value === null || value === undefined ? undefined : value[step]), document);
}

/** The document with another value at a place. `undefined` removes a member; maps on the way are made. */
export function put(document, path, value) {
  if (path.length === 0) return value;
  const [step, ...rest] = path;
  if (Array.isArray(document)) {
    const copy = [...document];
    copy[step] = put(copy[step], rest, value);
    return copy;
  }
  const below = put(document?.[step], rest, value);
  if (below === undefined) {
    const { [step]: _, ...others } = document ?? {};
    return others;
  }
  return { ...document, [step]: below };
}

/** The name of a member changes, and its place among the others does not. */
export function rename(map, from, to) {
  return Object.fromEntries(Object.entries(map).map(([name, value]) => [name === from ? to : name, value]));
}

/** RFC 6901. */
export const pointer = (path) => path.map((step) => `/${String(step).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");

export const steps = (text) =>
  text.split("/").slice(1).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));

/** Whether two values are the same JSON. The order of members does not count. */
export function same(one, other) {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => Object.hasOwn(other, name) && same(one[name], other[name]));
}

/** The resource without what the node writes by itself, and refuses to be sent. */
export function editable({ create_time: _, update_time: __, validity_start: ___, validity_end: ____, ...rest }) {
  return rest;
}

export const pretty = (value) => JSON.stringify(value, null, 2) ?? "";
