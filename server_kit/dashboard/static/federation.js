// The first page: the federation at a glance, its cohorts, how the tree came to its shape.

import { behind, figure as figureOf, lineChart, pointsOf } from "./chart.js";
import { h } from "./dom.js";
import { ago, at, count, devices, duration, epsilon, figure, known, percent, tiny } from "./format.js";
import { lanes } from "./lanes.js";
import { badge, bar, code, cohortLink, empty, figures, section, table } from "./parts.js";

export const title = (state) => state.overview?.name ?? "Federation";
export const needs = () => ["/api/tracks"];

export function view(state) {
  const found = state.overview;
  if (!found) return [h("h1", {}, "Federation"), h("p", { class: "lead" }, "Reading the federation.")];
  return [
    h("h1", {}, found.name),
    h("p", { class: "lead" }, standing(found)),
    figures(glance(found)),
    section("Cohorts", "cohorts", hasBegun(found) ? cohortTable(found, state.now) : noCohort(found)),
    section("The tree over time", "tree", ...tree(state)),
    section("Accuracy by cohort", "accuracy", ...accuracy(state)),
    section("Splits and merges", "changes", ...changes(found.changes, state.now)),
  ];
}

export function standing(found) {
  if (!found.store_up) return "The store cannot be read now; figures below may be missing. The server's log says why.";
  if (!found.running) return "The server is not running. This is what it stored.";
  if (!found.health.alive.ok) return `Something is wrong: ${found.health.alive.faults.join("; ")}.`;
  if (found.over) return "All rounds are done; the server rests.";
  if (!found.health.ready.ok) return `Not ready for devices: ${found.health.ready.faults.join("; ")}.`;
  return `Training with the preset ${found.preset}.`;
}

function glance(found) {
  const training = found.cohorts.filter((each) => each.state === "training");
  const { connected, enrolled, waiting } = found.devices;
  const spend = found.spend;
  return [
    ["Devices connected", known(connected) ? count(connected) : "–",
      `${count(enrolled)} enrolled${known(waiting) ? `, ${count(waiting)} waiting` : ""}`],
    ["Cohorts training", count(training.length), `${count(found.cohorts.length)} since the beginning`],
    ["Rounds", count(training.reduce((most, each) => Math.max(most, each.round), 0)), "of the cohort that is furthest"],
    ["Most ε spent", spend ? epsilon(spend.most) : "–", spend ? `of ${spend.limit} promised, δ ${tiny(spend.delta)}` : ""],
    ["Refused", count(found.refused), "since the beginning"],
  ];
}

const hasBegun = (found) => found.cohorts.some((each) => each.round > 0 || each.open || each.last_round_at);

const noCohort = (found) =>
  empty("No round has been opened yet. ", found.devices.enrolled
    ? "The first begins when enough devices wait."
    : h("span", {}, "No device is enrolled: ", code("covey server invite"), " lets some in."));

function cohortTable(found, now) {
  const alive = found.cohorts.filter((each) => each.state === "training");
  const order = found.cohorts.filter((each) => each.state !== "merged" || alive.length === 0);
  const columns = [["Cohort", "tree"], ["State", ""], ["Devices", "number"], ["Round", "number"], ["Accuracy", "number"],
    ["Loss", "number"], ["Answers in", "number"], ["Round in progress", "wide"]];
  return table("Cohorts in the order of the tree; only leaves train", columns, order.map((each) => [
    h("span", { class: `depth depth-${Math.min(6, each.cohort.split(".").length - 1)}` }, cohortLink(each.cohort)),
    badge(each.state, each.state), count(each.devices), count(each.round), percent(each.accuracy), figure(each.loss),
    known(each.answer_seconds) ? duration(each.answer_seconds) : "–", progress(each, now)]), { quiet: true, kind: "dense" });
}

export function progress(each, now) {
  if (each.state === "split") return h("span", { class: "quiet" }, "its children train");
  if (each.state !== "training") return h("span", { class: "quiet" }, "trains no more");
  if (!each.open) return h("span", { class: "quiet" }, each.last_round_at ? `none open; last ${ago(each.last_round_at, now)}` : "none open");
  const { arrived, needed, selected, deadline_at: deadline } = each.open;
  const left = known(deadline) ? (deadline > now ? `, ${duration(deadline - now)} left` : ", past its deadline") : "";
  const text = `${arrived} of ${needed} arrived, ${selected} asked${left}`;
  return h("span", { class: "progress" }, bar(arrived / Math.max(1, needed), text), h("span", {}, text));
}

function tree(state) {
  const tracks = state.documents["/api/tracks"];
  if (!tracks) return [h("div", { class: "hold" })];
  if (!tracks.tracks.some((track) => track.spans.length)) return [empty("The tree grows with the first round.")];
  return [figureOf(lanes({ key: "tree", tracks: tracks.tracks, changes: tracks.changes, now: Math.max(state.now, tracks.at),
    width: state.width, kindOf: state.kindOf }),
  h("figcaption", {}, "Each bar is the time in which a cohort trained, thicker the more devices it has. "
    + "Filled joints are splits, hollow ones merges."))];
}

function accuracy(state) {
  const tracks = state.documents["/api/tracks"];
  if (!tracks) return [h("div", { class: "hold" })];
  const series = tracks.tracks.filter((track) => track.accuracy.length).map((track) => ({
    name: track.state === "training" || state.width > 700 ? track.cohort : "", cohort: track.cohort,
    kind: `${state.kindOf(track.cohort)}${track.state === "training" ? "" : " past"}`,
    points: pointsOf(track.accuracy, 2, track.spans) }));
  if (!series.length) return [untested()];
  const newest = series.map((each) => [cohortLink(each.cohort), ...each.points.at(-1)]);
  return [figureOf(
    lineChart({ key: "accuracy", title: "Accuracy of each cohort's model, by round", width: state.width, height: 280, series,
      description: `Newest: ${series.map((each) => `${each.cohort} ${percent(each.points.at(-1)[1])}`).join(", ")}.`,
      say: (value) => `${Math.round(value * 100)} %` }),
    behind("Newest accuracy of each cohort", [["Cohort", ""], ["Round", "number"], ["Accuracy", "number"]],
      newest.map(([cohort, round, value]) => [cohort, count(round), percent(value)])))];
}

export const untested = () => empty("No model has been tested yet. ", code("[evaluation]"),
  " in server.toml says how: on data of the server's own, or by asking devices.");

export function changes(list, now) {
  if (!list.length) return [empty("None so far: all devices train one model until their data prove to differ.")];
  return [table("Splits and merges, newest first", [["When", ""], ["What", ""], ["Cohorts", ""], ["Why", "wide"]],
    list.slice(0, 20).map((each) => [
      h("time", { datetime: new Date(each.at * 1000).toISOString(), title: ago(each.at, now) }, at(each.at)),
      badge(each.kind, each.kind), changed(each), each.why || "–"]), { quiet: true })];
}

const changed = (each) => each.kind === "merge"
  ? h("span", {}, "into ", cohortLink(each.cohort))
  : h("span", {}, cohortLink(each.cohort), " into ", each.children.map((child, place) => [place ? ", " : "", cohortLink(child),
    known(each.sizes[place]) ? ` (${devices(each.sizes[place])})` : ""]));
