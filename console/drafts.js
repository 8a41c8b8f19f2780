// Whether changes go into a draft, and what is in it. `draft.js`, which makes it, is loaded in file mode only, when it is needed.

import { session } from "./api.js";
import { signal } from "./vendor/ui.js";

/**
 * `base`: the files as they were read, `{files, revision, writable}`; `texts`: the changed ones, by name; `operations`: those that
 * made them, in their order; `isTyped`: a text was typed, so that the operations alone no longer make the texts.
 */
const NONE = { base: null, texts: new Map(), operations: [], isTyped: false };
export const draft = signal(NONE);
export const forgetDraft = () => (draft.value = NONE);

export const drafts = () => session.value?.can_draft;

/** True if the user can change resources, in a store or in a draft. */
export const mayChange = () => session.value?.can_write || drafts();

/** The number of changes: of resources and of typed files. */
export const size = () => draft.value.operations.length + draft.value.isTyped;

/** The module, once it is loaded. */
export let maker = null;
export const loadMaker = async () => (maker ??= await import("./draft.js"));
