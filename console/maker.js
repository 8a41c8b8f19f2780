// What makes drafts, once it is loaded.

export let maker = null;
export const loadMaker = async () => (maker ??= await import("./draft.js"));
