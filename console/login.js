// The log-in page.

import { comeBack, hint, leave, logIn, session } from "./api.js";
import { loaded } from "./load.js";
import { prose } from "./parts.js";
import { t } from "./texts.js";
import { html, nothing, signal } from "./vendor/ui.js";

const advice = loaded(hint);
const fault = signal("");
const busy = signal(false);

advice.load();

async function submit(event) {
  event.preventDefault();
  const box = document.getElementById("key");
  busy.value = true;
  fault.value = "";
  try {
    await logIn({ key: box.value.trim() });
  } catch (error) {
    fault.value = inWords(error, t.login.wrong);
    box.select();
  } finally {
    busy.value = false;
  }
}

/** The browser has come back from the provider. */
export async function endLogIn() {
  try {
    await comeBack();
  } catch (error) {
    fault.value = inWords(error, t.login.ended);
    session.value = null;
  }
}

/** The cookies of a log-in are of the address that the provider leads back to. */
const begin = () => (advice.data.oidc.console.startsWith(`${location.origin}/`) ? leave() : location.assign(advice.data.oidc.console));

function inWords(error, wrong) {
  if (error.status === 401) return wrong;
  if (error.status === 429) return t.login.many(error.body.retry_after ?? 60);
  if (error.body?.reason === "insecure") return t.login.insecure;
  return error.message === "no_answer" ? t.noAnswer : error.message;
}

export const loginPage = () => html`
  <main class="login"><form @submit=${submit}>
    <img src="icon.svg" alt="" width="32" height="32">
    <h1>${t.login.title}</h1>
    <label for="key">${t.login.key}</label>
    <input id="key" type="password" autocomplete="current-password" spellcheck="false" required autofocus aria-describedby="key-about">
    <p id="key-about" class="about">${prose(advice.data?.key_file ? t.login.generated(advice.data.key_file) : t.login.about)}</p>
    ${advice.data?.secure === false ? html`<p class="problem">${prose(t.login.insecure)}</p>` : nothing}
    <p class="fault" role="alert">${prose(fault.value)}</p>
    <button class="main" ?disabled=${busy.value}>${t.login.button}</button>
    ${advice.data?.oidc ? html`<button type="button" @click=${begin}>${t.login.at(advice.data.oidc.name)}</button>` : nothing}
  </form></main>`;
