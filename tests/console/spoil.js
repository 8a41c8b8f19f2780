// Runs in the page: from now on, all texts of answers of the node have a hostile end, and so have labels' names.
(() => {
  const HOSTILE = ` \\"><img src=x onerror=window.hacked=1><script>window.hacked=1</script>`;
  // What a program reads: kinds, states, places and names of members. Texts for people are none of these.
  const KEPT = new Set(["columns", "role", "mode", "token", "features", "type", "outcome", "action", "severity", "revision"]);
  const spoiled = (value, name) => {
    if (typeof value === "string") return KEPT.has(name) ? value : value + HOSTILE;
    if (Array.isArray(value)) return value.map((item) => spoiled(item, name));
    if (value === null || typeof value !== "object") return value;
    const inner = ([own, item]) => [name === "labels" ? own + HOSTILE : own, spoiled(item, own)];
    return Object.fromEntries(Object.entries(value).map(inner));
  };
  // A schema says how a form is made; its words are for people.
  const worded = (value, name) => {
    if (typeof value === "string") return ["description", "title"].includes(name) ? value + HOSTILE : value;
    if (Array.isArray(value)) return value.map((item) => worded(item, name));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([own, item]) => [own, worded(item, own)]));
  };
  const ask = window.fetch;
  window.fetch = async (...request) => {
    const response = await ask(...request);
    const isSchema = /\/(schema\/|plugins\?all)/.test(response.url);
    const text = response.text.bind(response);
    response.text = async () => {
      const whole = await text();
      try {
        return JSON.stringify((isSchema ? worded : spoiled)(JSON.parse(whole), ""));
      } catch {
        return whole + HOSTILE;
      }
    };
    return response;
  };
})()
