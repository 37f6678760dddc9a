// The token becomes a cookie. It comes in the address after #, which browsers do not send.

import { h } from "./dom.js";

export async function enter(token) {
  const answer = await fetch("/session", { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
  return answer.ok;
}

export async function enterByAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  await enter(token);
}

export function door() {
  const field = h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const said = h("p", { class: "quiet", role: "alert" });
  const form = h("form", {}, h("label", { for: "token" }, "Token"), field, h("button", { type: "submit" }, "Enter"), said);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (await enter(field.value.trim())) location.reload();
    else said.textContent = "This is not the token.";
  });
  return h("div", { class: "door" }, h("h1", {}, "A token is needed"),
    h("p", {}, "On the server, ", h("code", {}, "covey server dashboard DIR"), " prints an address that lets you in. The token is in ",
      h("code", {}, "secrets/dashboard.token"), " in the federation's directory."), form);
}
