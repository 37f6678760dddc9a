// What several pages are made of.

import { h, s } from "./dom.js";
import { count, known } from "./format.js";

export const section = (title, id, ...content) =>
  h("section", { "aria-labelledby": id }, h("h2", { id }, title), ...content);

export const empty = (...text) => h("p", { class: "empty" }, ...text);
export const code = (text) => h("code", {}, text);

export const figures = (list) =>
  h("dl", { class: "figures" },
    list.map(([name, value, note]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: "figure" }, value), h("dd", { class: "note" }, note || " "))));

// columns: [heading, class]; rows: cells, each a node or a text. On a phone each row becomes a small card, and what is
// shown as blocks is no table to a screen reader unless it is called one.
export const table = (caption, columns, rows, { quiet = false, kind = "" } = {}) =>
  h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", { class: `rows ${kind}`, role: "table" },
      h("caption", { class: quiet ? "unseen" : null }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([name, width]) =>
        h("th", { scope: "col", role: "columnheader", class: width }, name || h("span", { class: "unseen" }, "More"))))),
      h("tbody", { role: "rowgroup" }, rows.map((cells) => h("tr", { role: "row" }, cells.map((cell, place) =>
        cellOf(cell, place, columns[place])))))));

const cellOf = (cell, place, [name, width]) => h(place ? "td" : "th",
  { scope: place ? null : "row", role: place ? "cell" : "rowheader", class: width, "data-name": name }, known(cell) ? cell : "–");

export const bar = (share, label, kind = "") =>
  s("svg", { class: `bar ${kind}`, role: "img", "aria-label": label, width: "100%", height: "8" },
    s("rect", { class: "track", width: "100%", height: "8", rx: "4" }),
    s("rect", { class: "fill", width: `${Math.max(0, Math.min(1, share)) * 100}%`, height: "8", rx: "4" }));

// Names with counts as bars, longest first.
export function bars(caption, entries, nameOf = (name) => name) {
  const most = Math.max(1, ...entries.map(([, value]) => value));
  return table(caption, [["What", ""], ["Count", "number"], ["Share", "wide"]],
    entries.map(([name, value]) => [nameOf(name), count(value), bar(value / most, `${count(value)} of at most ${count(most)}`)]),
    { quiet: true, kind: "tally" });
}

export const cohortLink = (cohort) => h("a", { href: `/cohorts/${cohort}` }, cohort);
export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
