// Runs in the page: draws forms of documents, works on their controls, and returns what is wrong, as a list of texts.
(async (documents) => {
  const base = new URL("./", document.baseURI).href;
  const [{ form }, { render }, { put, at, same, steps, pretty }, { resolve, choices }] = await Promise.all(
    ["form/form.js", "vendor/ui.js", "document.js", "form/schema.js"].map((name) => import(base + name)));
  const place = document.createElement("div");
  document.querySelector("#content").append(place);
  const problems = [];
  let controls = 0;

  /** A form that is drawn again after each change, as on a page. */
  function draw({ schema, value, plugins }) {
    const state = { value, shown: new Map() };
    const again = () => render(form({ schema, value: state.value, plugins, shown: state.shown, set(path, next) {
      state.value = put(state.value, path, next);
      again();
    } }), place);
    render(null, place);
    again();
    return state;
  }
  const all = () => [...place.querySelectorAll("input, select, textarea")];
  const event = (name) => new Event(name, { bubbles: true });
  const ownPlace = (control) => control.closest("[data-pointer]").dataset.pointer;

  /** Another value that the control can have. */
  function edit(control) {
    if (control.type === "checkbox") {
      control.checked = !control.checked;
    } else if (control.tagName === "SELECT") {
      const other = [...control.options].find((option) => option.value !== control.value);
      if (!other) return false;
      control.value = other.value;
    } else if (control.tagName === "TEXTAREA" && control.classList.contains("mono")) {
      control.value = control.value === "[7]" ? "[8]" : "[7]";
    } else control.value = control.value === "17" ? "18" : "17";
    control.dispatchEvent(event("input"));
    control.dispatchEvent(event("change"));
    return true;
  }

  let seed = 1;
  /** A number below a limit, the same in each run. */
  function chance(limit) {
    seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((seed / 2 ** 32) * limit);
  }
  const pick = (list) => list[chance(list.length)];
  const some = (count, make) => Array.from({ length: count }, (_, index) => make(index));
  const TEXTS = ["", "a", "$arg_a", "two words", "1.5", "true", "a\nb\n", " x ", "ä→", "\"q\"", "{}", "/a/*"];

  /** A value that a schema allows, as far as it says so by kinds, bounds and choices. */
  function fitting(given, root, depth = 0) {
    const schema = resolve(given, root);
    const list = choices(schema);
    if (list) return pick(list).value;
    const branches = schema.oneOf ?? schema.anyOf;
    if (branches) return fitting(pick(branches), root, depth);
    const type = Array.isArray(schema.type) ? pick(schema.type) : schema.type;
    if (type === "object") return map(schema, root, depth);
    if (type === "array") {
      const count = Math.max(schema.minItems ?? 0, depth > 3 ? 0 : Math.min(schema.maxItems ?? 3, chance(4)));
      return some(count, () => fitting(schema.items ?? {}, root, depth + 1));
    }
    if (type === "boolean") return chance(2) === 1;
    if (type === "integer" || type === "number") {
      const [low, high] = [schema.minimum ?? 0, schema.maximum ?? 1_000_000];
      const number = low + chance(Math.min(high - low, 1_000_000) + 1);
      return type === "number" && number < high ? number + chance(10) / 10 : number;
    }
    if (type === "null") return null;
    if (type === "string") return schema.examples?.length && chance(2) ? pick(schema.examples) : pick(TEXTS).slice(0, schema.maxLength ?? 1000).padEnd(schema.minLength ?? 0, "x");
    return pick([1, "a", [], {}, [["arg_a", "==", "1"]], { a: [1, { b: null }] }]);
  }

  function map(schema, root, depth) {
    const wanted = Object.entries(schema.properties ?? {}).filter(([name]) => schema.required?.includes(name) || (depth < 4 && chance(10) < 4));
    const value = Object.fromEntries(wanted.map(([name, own]) => [name, fitting(own, root, depth + 1)]));
    const inner = schema.additionalProperties;
    if (inner && depth < 4) for (let count = chance(4); count > 0; count -= 1) value[pick(["a", "X-B", "c.d", "e/f~g", "127.0.0.1:80"])] = fitting(inner === true ? {} : inner, root, depth + 1);
    return value;
  }

  /** Adds, moves and removes items of each list. The rest stays, and the way back leads to the list as it was. */
  function workOnLists(one) {
    const groups = () => [...place.querySelectorAll(".items")].filter((group) => group.querySelector(":scope > button"));
    draw(one);
    for (let index = groups().length - 1; index >= 0; index -= 1) {
      const state = draw(one);
      const own = () => groups()[index];
      const path = steps(own().getAttribute("aria-labelledby").slice(1, -"-name".length));
      const list = () => at(state.value, path) ?? [];
      const before = list();
      const is = (what, expected) => same(list(), expected) || problems.push(`${one.name}: ${path.join("/")} ${what}: ${pretty(list())}, not ${pretty(expected)}`);
      own().querySelector(":scope > button").click();
      if (list().length !== before.length + 1) problems.push(`${one.name}: no item was added at ${path.join("/")}`);
      is("grows at its end", [...before, list().at(-1)]);
      const button = (item, at) => own().querySelectorAll(":scope > .item")[item].querySelector(":scope > .item-head").querySelectorAll("button")[at].click();
      button(before.length, 2);
      is("is as before", before);
      if (before.length > 1) {
        const [first, second, ...rest] = before;
        button(0, 1);
        is("is moved down", [second, first, ...rest]);
        button(1, 0);
        is("is moved up", before);
        button(0, 2);
        is("is without its first", [second, ...rest]);
      }
      lists += 1;
    }
  }

  let lists = 0;
  const wanted = documents.flatMap(({ random, ...one }) => (random === undefined ? [one]
    : some(random, (index) => ({ ...one, name: `${one.name}, random ${index}`, value: fitting(one.schema, one.schema), alone: false }))));
  for (const one of wanted) {
    workOnLists(one);
    const text = JSON.stringify(one.value);
    const state = draw(one);
    for (const control of all()) {
      controls += 1;
      control.dispatchEvent(event("input"));
      control.dispatchEvent(event("change"));
    }
    if (JSON.stringify(state.value) !== text) problems.push(`${one.name}: ${text} became ${JSON.stringify(state.value)}`);
    if (one.alone === false) continue;
    const count = all().length;
    for (let index = 0; index < count; index += 1) {
      const fresh = draw(one);
      const control = all()[index];
      const own = ownPlace(control);
      if (!edit(control)) continue;
      const path = steps(own);
      const isAdder = control.closest(".new") || control.placeholder === "add a name";
      if (!isAdder && same(at(fresh.value, path), at(one.value, path))) problems.push(`${one.name}: an edit at ${own} did nothing`);
      // What stands elsewhere is as it was; maps on the way to the place may be new.
      const without = (value) => JSON.stringify(prune(put(value ?? {}, path, undefined), path));
      if (without(fresh.value) !== without(one.value)) problems.push(`${one.name}: an edit at ${own} changed ${pretty(fresh.value)}`);
    }
  }
  place.remove();
  return { problems, controls, lists };

  /** Removes the maps above a place that are empty. */
  function prune(value, path) {
    let now = value;
    for (let depth = path.length - 1; depth > 0; depth -= 1) {
      const above = at(now, path.slice(0, depth));
      if (above && typeof above === "object" && Object.keys(above).length === 0) now = put(now, path.slice(0, depth), undefined);
    }
    return now;
  }
})
