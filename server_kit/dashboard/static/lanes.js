// The tree over time: a lane for each cohort, thicker the more devices it has, joined where it split or was merged.

import { s } from "./dom.js";
import { at, atClock, count, known } from "./format.js";
import { frame } from "./chart.js";

const ROW = 30;
const TOP = 8;
const BOTTOM = 26;

const place = (name) => name.split(".").map(Number);

export function inTreeOrder(one, other) {
  const [a, b] = [place(one), place(other)];
  for (let index = 0; index < Math.max(a.length, b.length); index += 1) {
    const step = (a[index] ?? -1) - (b[index] ?? -1);
    if (step) return step;
  }
  return 0;
}

export function lanes({ key, tracks, changes, now, width, kindOf }) {
  const rows = [...tracks].filter((track) => track.spans.length).sort((a, b) => inTreeOrder(a.cohort, b.cohort));
  const left = 26 + 10 * Math.max(...rows.map((row) => row.cohort.length));
  const right = width > 500 ? 96 : 44;
  const height = TOP + rows.length * ROW + BOTTOM;
  const from = Math.min(...rows.map((row) => row.spans[0][0]));
  const x = (time) => left + ((time - from) / Math.max(1, now - from)) * (width - left - right);
  const middle = new Map(rows.map((row, index) => [row.cohort, TOP + index * ROW + ROW / 2]));
  const most = Math.max(1, ...rows.map((row) => row.devices || 1));
  const thick = (row) => 4 + 12 * Math.sqrt((row.devices || 1) / most);
  const alive = rows.filter((row) => row.state === "training");
  return frame(key, "The cohort tree over time",
    `${alive.length} of ${rows.length} cohorts train: ${alive.map((row) => row.cohort).join(", ")}. A bar is the time `
    + "in which a cohort trained, and is thicker the more devices it has.", width, height,
    rows.map((row) => s("g", { class: row.state === "training" ? "lane" : "lane past" },
      s("line", { class: "rest", x1: left, x2: width - right, y1: middle.get(row.cohort), y2: middle.get(row.cohort) }),
      s("a", { href: `/cohorts/${row.cohort}` },
        s("text", { x: 2 + 10 * (place(row.cohort).length - 1), y: middle.get(row.cohort) + 4 }, row.cohort)),
      row.spans.map(([begin, end]) => s("rect", { class: kindOf(row.cohort), x: x(begin),
        width: Math.max(2, x(end ?? now) - x(begin)), y: middle.get(row.cohort) - thick(row) / 2, height: thick(row), rx: 2 })),
      s("text", { class: "size", x: width - right + 8, y: middle.get(row.cohort) + 4 }, size(row, width)))),
    s("g", { class: "joints" }, changes.map((change) => joint(change, rows, middle, x))),
    s("g", { class: "axis" }, times(from, now, width).map((time, index, all) => s("text", { x: x(time), y: height - 6,
      "text-anchor": index === 0 ? "start" : index === all.length - 1 ? "end" : "middle" },
    now - from > 86400 ? at(time) : atClock(time).slice(0, now - from > 600 ? 5 : 8)))));
}

const size = (row, width) =>
  !known(row.devices) || row.state !== "training" ? "" : width > 500 ? `${count(row.devices)} devices` : count(row.devices);

function joint(change, rows, middle, x) {
  const children = change.kind === "split" ? change.children
    : rows.map((row) => row.cohort).filter((name) => name.startsWith(`${change.cohort}.`)
      && rows.find((row) => row.cohort === name).spans.some(([, end]) => end === change.at));
  const ends = [change.cohort, ...children].map((name) => middle.get(name)).filter(known);
  if (ends.length < 2) return null;
  return s("g", { class: change.kind },
    s("line", { x1: x(change.at), x2: x(change.at), y1: Math.min(...ends), y2: Math.max(...ends) }),
    ends.map((y) => s("circle", { cx: x(change.at), cy: y, r: 3.5 })));
}

function times(from, now, width) {
  const parts = width > 700 ? 4 : 2;
  return Array.from({ length: parts + 1 }, (_, index) => from + ((now - from) * index) / parts);
}
