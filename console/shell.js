// What stands around every screen: menu, search box, session, messages, help.

import { logOut, revision, session } from "./api.js";
import { mayChange, size } from "./drafts.js";
import { searchBox } from "./find.js";
import { allKeys } from "./keys.js";
import { wordsOf } from "./kinds.js";
import { frame } from "./live.js";
import { dismiss, notice, undo } from "./notices.js";
import { badge, key, prose, waiting } from "./parts.js";
import { href, route } from "./router.js";
import { scheme, toggle } from "./scheme.js";
import { MENU } from "./screens.js";
import { t } from "./texts.js";
import { html, nothing, signal } from "./vendor/ui.js";

const menuIsOpen = signal(false);

export function showHelp() {
  document.getElementById("help").showModal();
}

export const shell = (screen, place) => html`
  <a class="skip" href="#content" @click=${focusContent}>${t.skip}</a>
  <header class="top">
    <button class="quiet menu-button" aria-label=${menuIsOpen.value ? t.closeMenu : t.menu} aria-expanded=${String(menuIsOpen.value)}
      aria-controls="menu" @click=${() => (menuIsOpen.value = !menuIsOpen.value)}>☰</button>
    <a class="brand" href="#/overview" aria-label=${`${t.name}: ${t.screens.overview}`}><img src="icon.svg" alt="" width="20" height="20"><b>${t.name}</b></a>
    ${searchBox(screen?.enter)}
    <span class="grow"></span>
    ${mayChange() ? html`<a class="button quiet new" href=${href(...newPlace())} title=${newTitle()} aria-label=${newTitle()}>+</a>` : nothing}
    ${size() ? html`<a class="button in-draft" href=${href("draft")} aria-label=${t.inDraft(size())}><span class="full">${t.inDraft(size())}</span><span class="short" aria-hidden="true">${size()}</span></a>` : nothing}
    ${mayChange() ? nothing : badge(session.value.mode === "file" ? t.fileMode : t.readOnly)}
    <span class="state" title=${frame.value ? t.live : t.paused}><i class=${frame.value ? "dot good" : "dot"}></i>
      <span class="muted">${revision.value === null ? nothing : t.revision(revision.value)}</span></span>
    <button class="quiet" title=${scheme.value === "dark" ? t.light : t.dark} aria-label=${scheme.value === "dark" ? t.light : t.dark} @click=${toggle}>${scheme.value === "dark" ? "☀" : "☾"}</button>
    <button class="quiet help-button" title="${t.help} (?)" aria-label=${t.help} @click=${showHelp}>?</button>
  </header>
  <nav id="menu" class=${menuIsOpen.value ? "open" : ""} aria-label=${t.menu} @click=${() => (menuIsOpen.value = false)}>
    ${Object.entries(t.groups).map(([group, title]) => menuGroup(group, title))}
    <div class="who"><span><b>${session.value.name}</b> <span class="muted">${session.value.role}</span></span>
      <button class="quiet" @click=${logOut}>${t.logOut}</button></div>
  </nav>
  <main id="content" tabindex="-1" data-place=${screen ? place : nothing}>${screen ? screen.view() : waiting(8)}</main>
  ${message()}
  ${help()}`;

/** The kind of which a new one is made here; routes, where there is none. */
const newKind = () => {
  const [first, second] = route.value.path;
  return MENU.find((entry) => entry.kind && [first, second].includes(entry.path[0]))?.kind ?? MENU.find((entry) => entry.kind).kind;
};
export const newPlace = () => ["new", newKind().list];
const newTitle = () => `${t.newOne(wordsOf(newKind()).one)} (n)`;

function focusContent(event) {
  event.preventDefault();
  document.getElementById("content").focus();
}

function menuGroup(group, title) {
  const entries = MENU.filter((entry) => entry.group === group && entry.needs());
  if (entries.length === 0) return nothing;
  const here = route.value.path[0] === "new" ? route.value.path[1] : (route.value.path[0] ?? "overview");
  return html`<h2>${title}</h2>${entries.map((entry) => html`<a href=${href(...entry.path)}
    aria-current=${entry.path[0] === here ? "page" : nothing}>${entry.title}<kbd aria-hidden="true">g ${entry.go}</kbd></a>`)}`;
}

const message = () => html`<div class="notices" role="status" aria-live="polite">${notice.value ? html`<div class="notice ${notice.value.tone}">
  <span>${prose(notice.value.text)}</span>
  ${notice.value.undo ? html`<button @click=${undo}>${t.undo} ${key("u")}</button>` : nothing}
  <button class="quiet" aria-label=${t.close} @click=${dismiss}>×</button></div>` : nothing}</div>`;

function help() {
  const { page, screen } = allKeys();
  const rows = (keys) => Object.entries(keys).map(([name, { label }]) => html`<div><dt>${name.split(" ").map(key)}</dt><dd>${label}</dd></div>`);
  return html`<dialog id="help" aria-label=${t.help_.title} @click=${(event) => event.target.id === "help" && event.target.close()}><div>
    <header><h2>${t.help_.title}</h2><span class="grow"></span><button class="quiet" aria-label=${t.close} @click=${() => document.getElementById("help").close()}>×</button></header>
    ${Object.keys(screen).length ? html`<h3>${t.help_.here}</h3><dl>${rows(screen)}</dl>` : nothing}
    <h3>${t.help_.everywhere}</h3><dl>${rows(page)}</dl></div></dialog>`;
}
