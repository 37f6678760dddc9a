// One cohort: the round in progress, how good its model is, whom it chooses and how long they take.

import { behind, figure as figureOf, lineChart, pointsOf } from "./chart.js";
import { h } from "./dom.js";
import { ago, at, atClock, count, duration, figure, known, percent } from "./format.js";
import { changes, untested } from "./federation.js";
import { badge, bar, cohortLink, empty, figures, section, table } from "./parts.js";

const MIX = {
  new: "never took part before",
  back: "took part before, not in the round before",
  again: "took part in the round before too",
};

export const title = (state) => `Cohort ${state.parameter}`;
export const needs = (state) => [`/api/cohorts/${encodeURIComponent(state.parameter)}`];

export function view(state) {
  const told = state.documents[needs(state)[0]];
  // What the stream repeats each second is newer than the document.
  const found = told && { ...told, ...state.overview?.cohorts.find((each) => each.cohort === state.parameter) };
  const heading = h("h1", {}, `Cohort ${state.parameter}`);
  if (found === undefined) return [heading, h("p", { class: "lead" }, "Reading the cohort.")];
  if (found === null) {
    return [heading, empty("There is no cohort of this name, or the store cannot be read now. ",
      h("a", { href: "/" }, "All cohorts"))];
  }
  const half = state.width > 740 ? Math.floor((state.width - 54) / 2) : state.width;
  return [
    h("nav", { class: "trail", "aria-label": "Ancestors" }, h("ol", {}, h("li", {}, h("a", { href: "/" }, "Federation")),
      found.lineage.map((name, place) => h("li", {}, place === found.lineage.length - 1
        ? h("span", { "aria-current": "page" }, name) : cohortLink(name))))),
    heading,
    h("p", { class: "lead" }, badge(found.state, found.state), " ", lead(found, state.now)),
    figures(facts(found)),
    section("Round in progress", "round", ...inProgress(found, state.now)),
    h("div", { class: "pair" },
      section("Accuracy", "accuracy", ...quality(found, "accuracy", half, percent)),
      section("Loss", "loss", ...quality(found, "loss", half, (value) => figure(value)))),
    h("div", { class: "pair" },
      section("Time to answer", "latency", ...latency(found, half)),
      section("Asked and arrived", "arrivals", ...arrivals(found, half))),
    section("Selection mix", "mix", ...mix(found)),
    section("Splits and merges", "changes", ...changes(found.changes, state.now)),
  ];
}

function lead(found, now) {
  if (found.state === "split") return ["Its devices train in ", ...children(found), "."];
  if (found.state === "merged") return [`Its devices train with ${found.parent} again.`];
  return [found.last_round_at ? `Last model ${ago(found.last_round_at, now)}.` : "No model of its own yet."];
}

const children = (found) => found.children.flatMap((child, place) => [place ? ", " : "", cohortLink(child)]);

const facts = (found) => [
  ["Devices", count(found.devices), "that worked for it last"],
  ["Round", count(found.round), `model version ${count(found.version)}`],
  ["Accuracy", percent(found.accuracy), known(found.accuracy_error) ? `± ${percent(found.accuracy_error)} standard error`
    : known(found.accuracy_round) ? `after round ${count(found.accuracy_round)}` : "not tested"],
  ["Loss", figure(found.loss), known(found.loss) ? "lower is better" : "not told"],
  ["Answers in", duration(found.answer_seconds), "median of the last round"],
];

function inProgress(found, now) {
  if (found.state !== "training") return [empty("This cohort does not train.")];
  if (!found.open) return [empty("No round is open. The next begins when enough of its devices wait.")];
  const { arrived, needed, selected, late, opened_at: opened, deadline_at: deadline } = found.open;
  const passed = known(deadline) ? Math.min(1, (now - opened) / Math.max(1, deadline - opened)) : 0;
  const rows = [
    ["Arrived", `${count(arrived)} of ${count(needed)} needed`, bar(arrived / Math.max(1, needed), `${arrived} of ${needed} arrived`)],
    ["Asked", count(selected), late ? `${count(late)} more still work for an earlier round` : "all for this round"],
    ["Open for", duration(Math.max(0, now - opened)), `since ${atClock(opened)}`],
    ["Deadline", known(deadline) ? (deadline > now ? `in ${duration(deadline - now)}` : "passed") : "none",
      known(deadline) ? bar(passed, `${Math.round(passed * 100)} % of the time has passed`, "time") : "the next model is made when enough have arrived"],
  ];
  return [table("The round that is open", [["What", "short"], ["Now", "short"], ["", "wide"]], rows, { quiet: true })];
}

function quality(found, name, width, say) {
  const own = pointsOf(found.series[name], 2, found.series.spans);
  const before = found.before.filter((each) => each[name].length)
    .map((each) => ({ name: "", kind: "c0 past", points: pointsOf(each[name], 2, each.spans) }));
  if (!own.length && !before.length) return [name === "accuracy" ? untested() : empty("Nobody tells a loss: it is known where the server tests "
    + "models on its own data, or where devices report it.")];
  const start = found.before.length && own.length ? [{ x: own[0][0], name: `as ${found.cohort}` }] : [];
  const newest = own.at(-1) ?? before.at(-1).points.at(-1);
  return [figureOf(
    lineChart({ key: name, title: `${name === "accuracy" ? "Accuracy" : "Loss"} by round`, width, marks: start,
      description: `After round ${newest[0]}: ${say(newest[1])}. The paler line is of the cohorts it descends from.`,
      series: [...before, { name: own.length ? found.cohort : "", kind: "c0", points: own }],
      say: name === "accuracy" ? (value) => `${Math.round(value * 100)} %` : (value) => value.toFixed(2) }),
    behind(`${name} by round`, [["Round", "number"], ["When", ""], [name, "number"]],
      [...found.series[name]].reverse().slice(0, 50).map((point) => [count(point[0]), at(point[1]), say(point[2])])))];
}

function latency(found, width) {
  const rounds = found.series.rounds.filter((point) => known(point[5]));
  if (!rounds.length) return [empty("No round has been answered by two devices yet.")];
  const newest = rounds.at(-1);
  return [figureOf(
    lineChart({ key: "latency", title: "Seconds from asking a device to its update, by round", width, low: 0, say: duration,
      description: `In round ${newest[0]} half answered within ${duration(newest[5])}, nine of ten within ${duration(newest[6])}.`,
      series: [{ name: "9 of 10", kind: "c1", points: pointsOf(rounds, 6, found.series.spans) },
        { name: "half", kind: "c0", points: pointsOf(rounds, 5, found.series.spans) }] }),
    behind("Time to answer by round", [["Round", "number"], ["Half within", "number"], ["9 of 10 within", "number"], ["Round took", "number"]],
      [...rounds].reverse().slice(0, 50).map((point) => [count(point[0]), duration(point[5]), duration(point[6]), duration(point[4])])))];
}

function arrivals(found, width) {
  const rounds = found.series.rounds.filter((point) => known(point[2]));
  if (!rounds.length) return [empty("No round has ended yet.")];
  const newest = rounds.at(-1);
  return [figureOf(
    lineChart({ key: "arrivals", title: "Devices asked and updates that arrived in time, by round", width, low: 0,
      description: `In round ${newest[0]}, ${newest[3]} of ${newest[2]} arrived.`, say: (value) => count(Math.round(value)),
      series: [{ name: "asked", kind: "c2 past", points: pointsOf(rounds, 2, found.series.spans) },
        { name: "arrived", kind: "c2", points: pointsOf(rounds, 3, found.series.spans) }] }),
    behind("Asked and arrived by round", [["Round", "number"], ["Asked", "number"], ["Arrived", "number"]],
      [...rounds].reverse().slice(0, 50).map((point) => [count(point[0]), count(point[2]), count(point[3])])))];
}

function mix(found) {
  const all = Object.values(found.mix).reduce((sum, each) => sum + each, 0);
  if (!all) return [empty("Nobody has been chosen yet.")];
  return [
    h("p", { class: "quiet" }, `Who was chosen in the last ${count(found.mixed_rounds)} rounds, ${count(all)} choices.`),
    table("Selection mix", [["Devices that", ""], ["Choices", "number"], ["Share", "number"], ["", "wide"]],
      Object.keys(MIX).map((kind) => [MIX[kind], count(found.mix[kind] ?? 0), percent((found.mix[kind] ?? 0) / all),
        bar((found.mix[kind] ?? 0) / all, percent((found.mix[kind] ?? 0) / all))]), { quiet: true }),
  ];
}
