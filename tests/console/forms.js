// Runs in the page: draws forms of documents, works on their controls, and returns what is wrong, as a list of texts.
(async (documents) => {
  const base = new URL("./", document.baseURI).href;
  const [{ form }, { render }, { put, at, same, steps, pretty }] = await Promise.all(["form/form.js", "vendor/ui.js", "document.js"].map((name) => import(base + name)));
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

  for (const one of documents) {
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
  return { problems, controls };

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
