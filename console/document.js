// Places in JSON documents, as lists of names and positions. A change makes a new document.

export function at(document, path) {
  return path.reduce((value, step) => (value === null || value === undefined ? undefined : value[step]), document);
}

/** `undefined` removes a member; maps on the way are made. */
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

/** The member keeps its place among the others. */
export function rename(map, from, to) {
  return Object.fromEntries(Object.entries(map).map(([name, value]) => [name === from ? to : name, value]));
}

/** RFC 6901. */
export const pointer = (path) => path.map((step) => `/${String(step).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");

export const steps = (text) =>
  text.split("/").slice(1).map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));

/** The order of members does not count. */
export function same(one, other) {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => Object.hasOwn(other, name) && same(one[name], other[name]));
}

/** Without what the node writes by itself, and refuses to be sent. */
export function editable({ create_time: _, update_time: __, validity_start: ___, validity_end: ____, ...rest }) {
  return rest;
}

export const pretty = (value) => JSON.stringify(value, null, 2) ?? "";
