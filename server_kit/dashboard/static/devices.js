// Devices by state, what was refused and why, and a page of the devices themselves. Names are the first digits of a hash.

import { h } from "./dom.js";
import { ago, count, onDay } from "./format.js";
import { badge, bars, code, empty, section, table } from "./parts.js";

const STATES = {
  working: "train now",
  here: "were here in the last ten minutes",
  away: "were here before",
  never: "enrolled, never seen",
  revoked: "kept out",
};

export const title = () => "Devices";
export const needs = (state) => {
  const query = new URLSearchParams();
  for (const name of ["state", "page"]) if (state.query.get(name)) query.set(name, state.query.get(name));
  return [`/api/devices${query.size ? `?${query}` : ""}`];
};
export const everySeconds = 5;

export function view(state) {
  const found = state.documents[needs(state)[0]];
  if (found === undefined) return [h("h1", {}, "Devices"), h("p", { class: "lead" }, "Reading the devices.")];
  if (found === null) return [h("h1", {}, "Devices"), empty("The store cannot be read now; the server's log says why.")];
  const all = Object.values(found.states).reduce((sum, each) => sum + each, 0);
  return [
    h("h1", {}, "Devices"),
    h("p", { class: "lead" }, all ? `${count(all)} were let in since the beginning.`
      : h("span", {}, "No device yet: ", code("covey server invite"), " lets some in.")),
    h("div", { class: "pair" },
      section("By state", "states", bars("Devices by state", Object.entries(found.states),
        (name) => h("span", {}, badge(name, name), " ", h("span", { class: "quiet" }, STATES[name])))),
      section("Refusals by reason", "refusals", Object.keys(found.refusals).length
        ? bars("Refusals by reason", Object.entries(found.refusals))
        : empty("Nothing has been refused."))),
    section("One by one", "list", choice(found), rows(found, state.now), pages(found)),
  ];
}

const link = (state, page, text, current) => {
  const query = new URLSearchParams();
  if (state) query.set("state", state);
  if (page > 1) query.set("page", page);
  return h("a", { href: `/devices${query.size ? `?${query}` : ""}`, "aria-current": current ? "true" : null }, text);
};

const choice = (found) => h("nav", { class: "choice", "aria-label": "Which devices" }, h("ul", {},
  h("li", {}, link("", 1, "All", found.state === "")),
  Object.keys(STATES).map((name) => h("li", {}, link(name, 1, name, found.state === name)))));

function rows(found, now) {
  if (!found.devices.length) return empty("No device is in this state.");
  return table("Devices, those seen last first",
    [["Device", "name"], ["State", ""], ["Seen", ""], ["Enrolled", ""], ["Releases", "number"], ["Refused", "wide"]],
    found.devices.map((each) => [code(each.device), badge(each.state, each.state), ago(each.last_seen, now), onDay(each.enrolled_at),
      count(each.releases), refused(each.refusals)]), { quiet: true, kind: "dense" });
}

const refused = (refusals) =>
  Object.entries(refusals).map(([reason, times]) => `${count(times)} ${reason}`).join(", ") || h("span", { class: "quiet" }, "nothing");

const pages = (found) => found.pages < 2 ? null : h("nav", { class: "pages", "aria-label": "Pages of devices" },
  found.page > 1 ? link(found.state, found.page - 1, "Earlier") : h("span", { class: "quiet" }, "Earlier"),
  h("span", {}, `Page ${count(found.page)} of ${count(found.pages)}`),
  found.page < found.pages ? link(found.state, found.page + 1, "Later") : h("span", { class: "quiet" }, "Later"));
