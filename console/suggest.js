// Completion of JSON by its schema.

import { choices, controlFor, resolve } from "./form/schema.js";
import { syntaxTree } from "./vendor/editor.js";

/** `schemas` is `{root, plugins}`, where `plugins` maps names to `{schema}`; null for a text that has none. */
export function suggest(context, schemas) {
  if (!schemas) return null;
  const inside = syntaxTree(context.state).resolveInner(context.pos, -1);
  const word = context.matchBefore(/"?[\w.-]*/);
  if (!context.explicit && (!word || word.from === word.to)) return null;
  const property = inside.name === "PropertyName" || inside.name === "Object" || (inside.name === "⚠" && inside.parent?.name === "Object");
  const path = pathOf(context.state, property ? outer(inside) : inside);
  const options = property ? names(schemaAt(path, schemas), context.state, outer(inside)) : values(schemaAt(path, schemas));
  return options.length ? { from: word?.from ?? context.pos, options, validFor: /^"?[\w.-]*$/ } : null;
}

const outer = (node) => (node.name === "Object" ? node : node.parent?.name === "Object" ? node.parent : (node.parent?.parent ?? node));

function pathOf(state, node) {
  const path = [];
  for (let at = node; at?.parent; at = at.parent) {
    if (at.parent.name === "Property" && at.name !== "PropertyName") {
      const name = at.parent.getChild("PropertyName");
      if (name) path.unshift(state.sliceDoc(name.from + 1, name.to - 1));
    } else if (at.parent.name === "Array") path.unshift(0);
  }
  return path;
}

/** The schema of a place, as `{schema, root, isPlugins}`. */
function schemaAt(path, { root, plugins }) {
  let now = { schema: resolve(root, root), root };
  for (const step of path) {
    if (now.isPlugins) {
      const own = plugins[step]?.schema ?? {};
      now = { schema: resolve(own, own), root: own };
      continue;
    }
    const below = typeof step === "number" ? now.schema.items : (now.schema.properties?.[step] ?? now.schema.additionalProperties);
    const schema = resolve(typeof below === "object" ? below : {}, now.root);
    const shaped = schema.oneOf || schema.anyOf ? controlFor(schema, undefined, now.root).schema : schema;
    now = { schema: shaped, root: now.root, isPlugins: schema["x-weir-plugins"], plugins };
  }
  return now.isPlugins ? { ...now, plugins } : now;
}

function names({ schema, isPlugins, plugins }, state, object) {
  const there = new Set(object.getChildren("Property").map((property) => {
    const name = property.getChild("PropertyName");
    return name ? state.sliceDoc(name.from + 1, name.to - 1) : "";
  }));
  const all = isPlugins
    ? Object.entries(plugins).map(([name, plugin]) => [name, plugin.schema])
    : Object.entries(schema.properties ?? {});
  return all.filter(([name]) => !there.has(name)).map(([name, own]) => ({
    label: `"${name}"`, apply: `"${name}": `, type: "property", info: own?.description,
  }));
}

function values({ schema }) {
  const list = choices(schema) ?? (schema.type === "boolean" ? [{ value: true }, { value: false }] : []);
  return list.map(({ value, about }) => ({ label: JSON.stringify(value), info: about || undefined }));
}
