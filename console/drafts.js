// What is in the draft; `draft.js` makes it.

import { session } from "./api.js";
import { signal } from "./vendor/ui.js";

/** `base`: files as read; `texts`: changed ones, by name, by `operations`, or `isTyped`. */
const NONE = { base: null, texts: new Map(), operations: [], isTyped: false };
export const draft = signal(NONE);
export const forgetDraft = () => (draft.value = NONE);

export const drafts = () => session.value?.can_draft;

/** True if the user can change resources, in a store or in a draft. */
export const mayChange = () => session.value?.can_write || drafts();

/** The number of changes: of resources and of typed files. */
export const size = () => draft.value.operations.length + draft.value.isTyped;
