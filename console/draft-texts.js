// The texts of the draft, which are loaded with it.

export const words = {
  about: "The files of the configuration. A draft stays in this page, is checked by the node, and is yours to copy into the file.",
  aboutWriting: "The files of the configuration. A draft stays in this page, and is checked by the node, until it is written.",
  hidden: "Words such as `__WEIR_HIDDEN_0_0__` stand for secrets that are not shown. In a text that is written, they stay what they are; in one that is copied, put in what the file has in their places.",
  files: "Files", text: "Text", changed: "changed", findings: "Problems",
  textOf: (name) => `Text of ${name}`,
  differenceOf: (name) => `Difference of ${name}`,
  none: "No changes in this file", noneAdvice: "Changes of resources are collected here; the text of the file can be edited as well.",
  copy: "Copy the text", copied: (name) => `Copied. Put it into ${name}`, write: "Write", reset: "Discard the draft", discarded: "The draft is discarded",
  written: "Written, and served", notServedYet: "Written, and not served yet: see the warnings of the overview",
  apply: "Put it into use", applyAbout: (name) => `Copy the text into \`${name}\` on the machine of the node: it loads a file that has changed. \`weir check\` checks it before.`,
  stale: "The files have changed since the draft began.", again: "Make the changes again in the files as they are now",
  staleTyped: "A text was typed in this draft, so that it cannot be made again: copy what you need, and discard the draft.",
  changedSince: "The draft has been changed since; undo the later change first",
  inDraft: (what) => `In the draft: ${what}`,
  deleted: "The draft deletes this resource.",
  inFile: (source, line) => `This resource is in ${source}, line ${line}. Changes go into the draft of this file.`,
  writeKey: "write or copy the draft", copyKey: "copy the text",
};
