// What a schema says about a value: references and alternatives are resolved here.

/** Without `$ref`, and X with `nullable` for `anyOf [X, null]`. */
export function resolve(schema, root) {
  let own = schema ?? {};
  let nullable = false;
  for (let depth = 0; depth < 16; depth += 1) {
    if (own.$ref) {
      const { $ref, ...rest } = own;
      own = { ...target($ref, root), ...rest };
    } else if (own.allOf?.length === 1 && !own.properties) {
      const { allOf, ...rest } = own;
      own = { ...allOf[0], ...rest };
    } else {
      const inner = withoutNull(own);
      if (!inner) break;
      own = inner;
      nullable = true;
    }
  }
  if (Array.isArray(own.type) && own.type.includes("null")) {
    const types = own.type.filter((type) => type !== "null");
    own = { ...own, type: types.length === 1 ? types[0] : types };
    nullable = true;
  }
  return nullable ? { ...own, nullable } : own;
}

const target = (reference, root) =>
  reference.split("/").slice(1).reduce((value, step) => value?.[step.replaceAll("~1", "/").replaceAll("~0", "~")], root) ?? {};

function withoutNull({ anyOf, ...rest }) {
  if (anyOf?.length !== 2 || !anyOf.some((one) => one.type === "null")) return null;
  return { ...anyOf.find((one) => one.type !== "null"), ...rest };
}

/** An enumeration's `{value, about}`; null if it is none. */
export function choices(schema) {
  if (Array.isArray(schema.enum)) return schema.enum.filter((value) => value !== null).map((value) => ({ value, about: "" }));
  const list = schema.oneOf ?? schema.anyOf;
  if (!list?.every((one) => "const" in one || one.enum?.length)) return null;
  return list.flatMap((one) => ("const" in one ? [one.const] : one.enum).map((value) => ({ value, about: one.description ?? "" })));
}

const SCALARS = new Set(["string", "number", "integer", "boolean"]);
const types = (schema) => (Array.isArray(schema.type) ? schema.type : schema.type ? [schema.type] : []);
const isText = (value) => typeof value === "string";
const oneLine = (value) => isText(value) && !/[\r\n]/.test(value);
const isMap = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The alternatives that are no enumeration, resolved. */
const branches = (schema, root) => (schema.oneOf ?? schema.anyOf ?? []).map((one) => resolve(one, root));

/** The alternative with the shape of a value; else the first. */
function branch(schema, value, root) {
  const all = branches(schema, root);
  const fits = (one) => {
    const wanted = types(one);
    if (value === undefined || value === null) return true;
    if (Array.isArray(value)) return wanted.includes("array");
    if (isMap(value)) return wanted.includes("object");
    return wanted.includes(typeof value === "number" ? "number" : typeof value) || (typeof value === "number" && wanted.includes("integer"));
  };
  return all.find(fits);
}

/**
 * The control for a value: `{control, schema, …}`. `control` is `switch`, `choice`, `text`, `area`, `scalar` (a number or several kinds),
 * `several` (choices), `lines` (a list of texts), `items` (a list), `pairs` (a map of scalars), `entries` (a map of maps),
 * `members` (a map with known members), `plugins` or `json`.
 */
export function controlFor(given, value, root) {
  const schema = resolve(given, root);
  const json = { control: "json", schema };
  if (value === null) return json;
  if (schema["x-weir-plugins"]) return value === undefined || isMap(value) ? { control: "plugins", schema } : json;
  const list = choices(schema);
  if (list) return value === undefined || list.some((one) => one.value === value) ? { control: "choice", schema, list } : json;
  if (schema.oneOf || schema.anyOf) return alternative(schema, value, root) ?? json;
  const wanted = types(schema);
  if (wanted.length > 1) {
    const scalars = wanted.every((type) => SCALARS.has(type));
    const fits = value === undefined || (typeof value !== "object" && (!isText(value) || oneLine(value)));
    if (scalars && fits) return { control: "scalar", schema };
    const shape = value === undefined ? wanted[0] : Array.isArray(value) ? "array" : isMap(value) ? "object" : typeof value;
    return wanted.includes(shape) ? single({ ...schema, type: shape }, value, root) : json;
  }
  return single(schema, value, root);
}

function alternative(schema, value, root) {
  const all = branches(schema, root);
  const plain = all.every((one) => types(one).length > 0 && types(one).every((type) => SCALARS.has(type)) && !choices(one));
  if (plain) {
    return value === undefined || (typeof value !== "object" && (!isText(value) || oneLine(value))) ? { control: "scalar", schema } : null;
  }
  const { oneOf, anyOf, ...rest } = schema;
  const fitting = branch(schema, value, root);
  return fitting && types(fitting).length ? controlFor({ ...fitting, ...rest, type: fitting.type }, value, root) : null;
}

function single(schema, value, root) {
  const json = { control: "json", schema };
  switch (schema.type) {
    case "boolean":
      return value === undefined || typeof value === "boolean" ? { control: "switch", schema } : json;
    case "string":
      if (value === undefined || oneLine(value)) return { control: isLong(schema) ? "area" : "text", schema };
      return isText(value) && !value.includes("\r") ? { control: "area", schema } : json;
    case "integer":
    case "number":
      // A text that is no number stays in its box.
      return value === undefined || typeof value === "number" || oneLine(value) ? { control: "scalar", schema } : json;
    case "array":
      return array(schema, value, root) ?? json;
    case "object":
      return object(schema, value, root) ?? json;
    default:
      return json;
  }
}

/** Texts of which one expects several lines: certificates and keys. */
const isLong = (schema) => schema.maxLength >= 16384 || /PEM/.test(schema.description ?? "");

function array(schema, value, root) {
  if (value !== undefined && !Array.isArray(value)) return null;
  const items = resolve(schema.items, root);
  const list = choices(items);
  const uniform = new Set(value ?? []).size === (value ?? []).length;
  if (list && uniform && (value ?? []).every((one) => list.some((other) => other.value === one))) return { control: "several", schema, list };
  if (items.type === "string" && !list) {
    const fits = (value ?? []).every((one) => oneLine(one) && one.trim() === one && one !== "");
    return fits ? { control: "lines", schema } : null;
  }
  return schema.items && (items.type === "object" || items.oneOf || items.anyOf) ? { control: "items", schema, items: schema.items } : null;
}

function object(schema, value, root) {
  if (value !== undefined && !isMap(value)) return null;
  if (schema.properties && Object.keys(schema.properties).length) return { control: "members", schema };
  const inner = typeof schema.additionalProperties === "object" ? resolve(schema.additionalProperties, root) : null;
  if (!inner || Object.keys(inner).length === 0) return null;
  const wanted = types(inner);
  const scalars = wanted.length > 0 && wanted.every((type) => SCALARS.has(type)) && !choices(inner);
  if (scalars) {
    const fits = Object.values(value ?? {}).every((one) => typeof one !== "object" && (!isText(one) || oneLine(one)));
    return fits ? { control: "pairs", schema, inner } : null;
  }
  return wanted.length === 1 && wanted[0] === "object" ? { control: "entries", schema, inner: schema.additionalProperties } : null;
}
