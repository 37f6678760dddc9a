// Whether the server lives and takes in devices, and its processes.

import { h } from "./dom.js";
import { ago, bytes, count, duration, known, onDay } from "./format.js";
import { badge, empty, figures, section, table } from "./parts.js";

export const title = () => "Health";
export const needs = () => ["/api/health"];
export const everySeconds = 2;

const yes = (good) => badge(good ? "yes" : "no", good ? "good" : "bad");

export function view(state) {
  const found = state.documents["/api/health"];
  if (!found) return [h("h1", {}, "Health"), h("p", { class: "lead" }, "Asking the processes.")];
  const faults = [...new Set([...found.alive.faults, ...found.ready.faults])];
  return [
    h("h1", {}, "Health"),
    h("p", { class: "lead" }, faults.length ? "Something needs a look." : "Everything works."),
    figures([
      ["Alive", yes(found.alive.ok), "supervisor and coordinator"],
      ["Ready", yes(found.ready.ok), "devices that come are taken in"],
      ["Store", yes(found.store_up), "can be read"],
      ["Restarts", count(found.restarts), "since the server was started"],
      ["Certificate", known(found.certificate_expires_at) ? onDay(found.certificate_expires_at) : "–",
        known(found.certificate_expires_at) ? "renewed before it ends" : "not told"],
    ]),
    section("Faults", "faults", faults.length ? h("ul", { class: "faults" }, faults.map((fault) => h("li", {}, fault)))
      : empty("None.")),
    section("Processes", "processes", found.processes.length ? table("Processes",
      [["Process", "name"], ["Number", "number"], ["Up", "number"], ["Memory", "number"], ["Last heard", ""]],
      found.processes.map((each) => [each.process, String(each.pid), duration(Math.max(0, state.now - each.started_at)),
        bytes(each.rss_bytes), ago(found.at - each.silent_seconds, state.now)]), { quiet: true, kind: "dense" })
      : empty("No process runs: the server was stopped, or has not begun.")),
  ];
}
