// What devices have spent, as a distribution beside the policy's promise.

import { behind, figure as figureOf, frame, ticks } from "./chart.js";
import { h, s } from "./dom.js";
import { count, devices, epsilon, tiny } from "./format.js";
import { bars, empty, figures, section } from "./parts.js";

const HEIGHT = 280;
const MARGIN = { top: 28, right: 16, bottom: 44, left: 50 };

export const title = () => "Privacy";
export const needs = () => ["/api/privacy"];
export const everySeconds = 30;

export function view(state) {
  const found = state.documents["/api/privacy"];
  const heading = h("h1", {}, "Privacy");
  if (found === undefined) return [heading, h("p", { class: "lead" }, "Adding up receipts; with many devices this takes a while.")];
  if (found === null) return [heading, empty("The store cannot be read now; the server's log says why.")];
  return [
    heading,
    h("p", { class: "lead" }, verdict(found)),
    figures([
      ["Most ε spent", epsilon(found.most), `of ${found.limit} promised`],
      ["Median ε", epsilon(found.median), `at δ ${tiny(found.delta)}`],
      ["Devices", count(found.devices), "that released anything"],
      ["Releases", count(found.releases), "each with a signed receipt"],
    ]),
    section("Devices by ε spent", "spread", found.devices
      ? figureOf(histogram(found, state.width), behind("Devices by ε spent", [["ε from", "number"], ["to", "number"], ["Devices", "number"]],
        found.bins.filter((bin) => bin.devices).map((bin) => [epsilon(bin.from), epsilon(bin.to), count(bin.devices)])))
      : empty("No device has released anything yet.")),
    section("Releases by mechanism", "mechanisms", found.devices
      ? bars("Releases by mechanism", Object.entries(found.mechanisms), (name) => name.replaceAll("_", " "))
      : empty("Nothing was released.")),
    h("p", { class: "quiet" }, "Counted here is what devices released to this server, by receipts they signed. "
      + "Their own ledgers also hold what they released elsewhere. Figures are added up every two minutes."),
  ];
}

function verdict(found) {
  if (!found.devices) return "No device has released anything yet.";
  if (found.over) return `${devices(found.over)} spent more than the policy promises.`;
  return `No device has spent more than the policy promises: ε ${found.limit} at δ ${tiny(found.delta)}.`;
}

function histogram(found, width) {
  const top = found.bins.at(-1).to;
  const most = Math.max(1, ...found.bins.map((bin) => bin.devices));
  const x = (value) => MARGIN.left + (value / top) * (width - MARGIN.left - MARGIN.right);
  const y = (value) => HEIGHT - MARGIN.bottom - (value / most) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  return frame("spread-chart", "Devices by ε spent",
    `${devices(found.devices)}; half spent at most ${epsilon(found.median)}, none more than ${epsilon(found.most)}; the policy's limit is ${found.limit}.`,
    width, HEIGHT,
    s("g", { class: "grid" }, ticks(0, most, 4).filter(Number.isInteger).map((value) => [
      s("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      s("text", { x: MARGIN.left - 8, y: y(value) + 4, "text-anchor": "end" }, count(value))])),
    s("g", { class: "axis" }, ticks(0, top, width > 500 ? 8 : 4).map((value) =>
      s("text", { x: x(value), y: HEIGHT - 24, "text-anchor": "middle" }, String(Number(value.toFixed(2))))),
    s("text", { x: (MARGIN.left + width - MARGIN.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "ε spent by a device")),
    s("g", { class: "bins" }, found.bins.filter((bin) => bin.devices).map((bin) => s("rect", { class: bin.from >= found.limit ? "over" : "",
      x: x(bin.from) + 1, width: Math.max(1, x(bin.to) - x(bin.from) - 2), y: y(bin.devices), height: HEIGHT - MARGIN.bottom - y(bin.devices) }))),
    s("g", { class: "limit" }, s("line", { x1: x(found.limit), x2: x(found.limit), y1: 18, y2: HEIGHT - MARGIN.bottom }),
      s("text", { x: x(found.limit) - 6, y: 14, "text-anchor": "end" }, `policy's limit ${found.limit}`)),
    s("g", { class: "median" }, s("line", { x1: x(found.median), x2: x(found.median), y1: 18, y2: HEIGHT - MARGIN.bottom }),
      s("text", { x: x(found.median) + (x(found.median) > width * 0.55 ? -6 : 6), y: 14,
        "text-anchor": x(found.median) > width * 0.55 ? "end" : "start" }, x(found.limit) - x(found.median) > 190 ? `median ${epsilon(found.median)}` : "")));
}
