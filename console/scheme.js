// Light or dark: as the system says, or as chosen here. The choice is no secret and may stay in the browser.

import { computed, effect, signal } from "./vendor/ui.js";

const KEPT = "weir-scheme";
const system = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);
system.addEventListener("change", () => (systemIsDark.value = system.matches));
const chosen = signal(localStorage.getItem(KEPT));

/** `light` or `dark`. */
export const scheme = computed(() => chosen.value ?? (systemIsDark.value ? "dark" : "light"));

export function toggle() {
  const next = scheme.peek() === "dark" ? "light" : "dark";
  if ((next === "dark") === systemIsDark.peek()) {
    localStorage.removeItem(KEPT);
    chosen.value = null;
  } else {
    localStorage.setItem(KEPT, next);
    chosen.value = next;
  }
}

effect(() => (document.documentElement.dataset.scheme = scheme.value));

/** The value of a colour token now. */
export const colour = (token) => getComputedStyle(document.documentElement).getPropertyValue(`--${token}`).trim();
