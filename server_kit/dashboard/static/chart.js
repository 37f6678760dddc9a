// Charts as inline SVG, each with a title, a description and its figures as a table behind it.

import { h, s } from "./dom.js";
import { known } from "./format.js";
import { table } from "./parts.js";

const MARGIN = { top: 14, right: 58, bottom: 30, left: 52 };
const LABEL_HEIGHT = 14;

export function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough) || power;
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let number = first; number * step <= high + step * 1e-6; number += 1) found.push(number * step || 0);
  return found;
}

export function frame(key, title, description, width, height, ...content) {
  return s("svg", { class: "chart", role: "img", "aria-labelledby": `${key}-title ${key}-desc`, width, height,
    viewBox: `0 0 ${width} ${height}` },
  s("title", { id: `${key}-title` }, title), s("desc", { id: `${key}-desc` }, description), ...content);
}

export const figure = (chart, ...behind) => h("figure", {}, chart, ...behind);

export const behind = (caption, columns, rows) =>
  h("details", {}, h("summary", {}, "Figures"), table(caption, columns, rows, { quiet: true }));

// Rows of a cohort (round, time, figures) as points; where it did not train for a while, the line is broken.
export function pointsOf(rows, place, spans = []) {
  const found = [];
  rows.forEach((row, index) => {
    const rested = index && spans.some(([begin]) => begin > rows[index - 1][1] && begin <= row[1]);
    if (rested) found.push([row[0], null]);
    if (known(row[place])) found.push([row[0], row[place]]);
  });
  return found;
}

// series: {name, kind, points: [[x, y]...]}, y null where the line is broken; `say` writes a y.
export function lineChart({ key, title, description, width, height = 240, series, say, xName = "round", low, high, marks = [] }) {
  const drawn = series.filter((each) => each.points.length);
  const all = drawn.flatMap((each) => each.points).filter(([, y]) => known(y));
  const span = spanOf(all, low, high);
  const place = placing(span, width, height);
  return frame(key, title, description, width, height,
    s("g", { class: "grid" }, ticks(span.low, span.high, 4).map((y) => [
      s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: place.y(y), y2: place.y(y) }),
      s("text", { x: MARGIN.left - 8, y: place.y(y) + 4, "text-anchor": "end" }, say(y))])),
    s("g", { class: "axis" }, ticks(span.from, span.to, width > 500 ? 6 : 3).filter((x) => Number.isInteger(x) && x > span.from + (span.to - span.from) * 0.03).map((x) =>
      s("text", { x: place.x(x), y: height - 10, "text-anchor": "middle" }, String(x))),
    s("text", { x: MARGIN.left - 8, y: height - 10, "text-anchor": "end" }, xName)),
    marks.filter((mark) => mark.x >= span.from && mark.x <= span.to).map((mark) => s("g", { class: "mark" },
      s("line", { x1: place.x(mark.x), x2: place.x(mark.x), y1: MARGIN.top, y2: height - MARGIN.bottom }),
      s("text", { x: place.x(mark.x) + 4, y: MARGIN.top + 8 }, mark.name))),
    drawn.map((each) => line(each, place)),
    endLabels(drawn, place, width));
}

function spanOf(points, low, high) {
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const from = Math.min(...xs);
  const to = Math.max(...xs, from + 1);
  const [least, most] = [low ?? Math.min(...ys), high ?? Math.max(...ys)];
  const room = most - least || Math.abs(most) || 1;
  return { from, to, low: low ?? Math.max(0, least - room * 0.08), high: high ?? most + room * 0.08 };
}

const placing = (span, width, height) => ({
  x: (x) => MARGIN.left + ((x - span.from) / (span.to - span.from)) * (width - MARGIN.left - MARGIN.right),
  y: (y) => height - MARGIN.bottom - ((y - span.low) / (span.high - span.low)) * (height - MARGIN.top - MARGIN.bottom),
});

function line(each, place) {
  let pen = "M";
  let path = "";
  for (const [x, y] of each.points) {
    path += known(y) ? `${pen}${place.x(x).toFixed(1)} ${place.y(y).toFixed(1)}` : "";
    pen = known(y) ? "L" : "M";
  }
  const [x, y] = each.points.at(-1);
  return s("g", { class: `series ${each.kind}` },
    s("path", { d: path }), s("circle", { cx: place.x(x), cy: place.y(y), r: each.kind.includes("past") ? 2 : 3 }));
}

// Lines are named where they end, so that nobody has to tell colours apart.
function endLabels(drawn, place, width) {
  const named = drawn.filter((each) => each.name)
    .map((each) => ({ ...each, x: place.x(each.points.at(-1)[0]), y: place.y(each.points.at(-1)[1]) + 4 }))
    .sort((one, other) => one.y - other.y);
  const atEdge = named.filter((each) => each.x > width - MARGIN.right - 40);
  atEdge.forEach((each, index) => {
    if (index) each.y = Math.max(each.y, atEdge[index - 1].y + LABEL_HEIGHT);
  });
  return s("g", { class: "names" }, named.map((each) =>
    s("text", { x: each.x + 7, y: each.y, class: each.kind }, each.name)));
}
