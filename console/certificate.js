// When a certificate is valid, read from its PEM text as far as that needs the structure of RFC 5280 section 4.1.

import { day } from "./format.js";
import { badge } from "./parts.js";
import { html, nothing } from "./vendor/ui.js";
import { certificate as words } from "./screens/texts.js";

/** The elements between two places of DER: `{tag, begin, end}`. */
function elements(der, begin, end) {
  const found = [];
  for (let at = begin; at < end; at = found.at(-1).end) {
    let length = der[at + 1];
    let start = at + 2;
    if (length > 127) {
      const count = length - 128;
      length = 0;
      for (let index = 0; index < count; index += 1) length = length * 256 + der[start + index];
      start += count;
    }
    if (!(start + length <= end)) throw new RangeError("not DER");
    found.push({ tag: der[at], begin: start, end: start + length });
  }
  return found;
}

/** `260301093000Z` (UTCTime) or `20260301093000Z` (GeneralizedTime), in milliseconds since 1970. */
function timeOf(der, { tag, begin, end }) {
  const text = String.fromCharCode(...der.subarray(begin, end));
  const [years, rest] = tag === 0x18 ? [Number(text.slice(0, 4)), text.slice(4)] : [Number(text.slice(0, 2)), text.slice(2)];
  const year = tag === 0x18 ? years : years + (years < 50 ? 2000 : 1900);
  const [month, date, hours, minutes, seconds] = rest.match(/\d\d/g).map(Number);
  return Date.UTC(year, month - 1, date, hours, minutes, seconds);
}

/** `{from, until}` of the first certificate of a text; null if there is none that can be read. */
export function validityOf(pem) {
  const body = /-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END/.exec(pem ?? "")?.[1];
  if (!body) return null;
  try {
    const der = Uint8Array.from(atob(body.replace(/\s/g, "")), (one) => one.charCodeAt(0));
    const inside = ({ begin, end }) => elements(der, begin, end);
    const members = inside(inside(elements(der, 0, der.length)[0])[0]);
    // Its version, the only member with this tag, may be left out. Serial number, algorithm and issuer come before the times.
    const validity = members[members[0].tag === 0xa0 ? 4 : 3];
    const [from, until] = inside(validity).map((time) => timeOf(der, time));
    return Number.isNaN(from + until) ? null : { from, until };
  } catch {
    return null;
  }
}

/** The dates of a certificate that is to be replaced, and of the one that comes; nothing if it stays. */
export function datesCompared(before, after) {
  if (before === after) return nothing;
  const [old, next] = [validityOf(before), validityOf(after)];
  const row = (title, dates) => html`<div><dt>${title}</dt><dd>${dates ? words.dates(day(dates.from), day(dates.until)) : "–"}</dd></div>`;
  const now = Date.now();
  // Names of files and references to secrets are texts as well, whose dates are not known here.
  const isPem = (text) => typeof text === "string" && text.trimStart().startsWith("-----BEGIN");
  if (![before, after].some(isPem)) return nothing;
  const doubt = !next ? (isPem(after) ? words.unreadable : "") : next.until < now ? words.ended : next.from > now ? words.notYet : old && next.until < old.until ? words.earlier : "";
  return html`<section id="dates"><h2>${words.validity}</h2><dl class="pairs-list">${old ? row(words.saved, old) : nothing}${row(words.edited, next)}</dl>
    ${doubt ? badge(doubt, "warn") : nothing}</section>`;
}
