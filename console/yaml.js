// JSON written as YAML, to be copied into a file. Nothing here reads YAML: the node does.

const PLAIN = /^[A-Za-z_/][\w./*@%+-]*( [\w./*@%+-]+)*$/;
const WORDS = /^(true|false|null|yes|no|on|off|y|n|~)$/i;

function scalar(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  return PLAIN.test(value) && !WORDS.test(value) ? value : JSON.stringify(value);
}

const isEmpty = (value) => Object.keys(value).length === 0;
const isNested = (value) => typeof value === "object" && value !== null && !isEmpty(value);

function lines(value, indent) {
  const pad = "  ".repeat(indent);
  if (Array.isArray(value)) {
    return value.flatMap((item) => {
      if (!isNested(item)) return [`${pad}- ${empty(item)}`];
      const [first, ...rest] = lines(item, indent + 1);
      return [`${pad}- ${first.trimStart()}`, ...rest];
    });
  }
  return Object.entries(value).flatMap(([name, item]) =>
    isNested(item) ? [`${pad}${scalar(name)}:`, ...lines(item, indent + 1)] : [`${pad}${scalar(name)}: ${empty(item)}`]);
}

const empty = (value) => (Array.isArray(value) ? "[]" : typeof value === "object" && value !== null ? "{}" : scalar(value));

/** A resource as an entry of its list: `routes:`, and the entry below. */
export const entry = (list, value) => [`${list}:`, ...lines([value], 1)].join("\n") + "\n";
