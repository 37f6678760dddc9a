// Puts it together: which page this is, what it needs to know, and when to look again.

import { show } from "./dom.js";
import { door, enterByAddress } from "./entering.js";
import { ago, atClock } from "./format.js";
import { inTreeOrder } from "./lanes.js";
import { follow } from "./live.js";
import * as cohort from "./cohort.js";
import * as devices from "./devices.js";
import * as federation from "./federation.js";
import * as health from "./health.js";
import * as privacy from "./privacy.js";

const PAGES = { federation, cohort, devices, privacy, health };
const main = document.getElementById("main");
const KINDS = 8;
const TOGETHER_MILLISECONDS = 700;

const state = { overview: null, documents: {}, connection: "connecting", heardAt: null, offset: 0, parameter: "", query: null };
let page = "federation";
let soon = null;
let readAt = 0;
let refused = false;

function findPage() {
  const [, first, second] = location.pathname.split("/");
  page = first === "cohorts" ? "cohort" : first in PAGES ? first : "federation";
  state.parameter = decodeURIComponent(second ?? "");
  state.query = new URLSearchParams(location.search);
}

// A cohort keeps its colour: they are dealt out in the order in which cohorts came.
state.kindOf = (name) => {
  const tracks = state.documents["/api/tracks"]?.tracks ?? [];
  const born = (track) => track.spans[0]?.[0] ?? Infinity;
  const order = [...tracks].sort((a, b) => born(a) - born(b) || inTreeOrder(a.cohort, b.cohort)).map((track) => track.cohort);
  return `c${Math.max(0, order.indexOf(name)) % KINDS}`;
};

async function read(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (answer.status === 401) {
    refused = true;
    show(main, door());
    state.connection = "refused";
    renderLine();
    throw new Error("a token is needed");
  }
  return answer.status === 404 ? null : answer.json();
}

async function readPage() {
  readAt = Date.now();
  try {
    await Promise.all(PAGES[page].needs(state).map(async (path) => { state.documents[path] = await read(path); }));
  } catch {
    return; // the stream says so too, and goes on trying
  }
  render();
}

function readSoon() {
  if (soon === null) soon = setTimeout(() => { soon = null; readPage(); }, TOGETHER_MILLISECONDS);
}

// The room for a chart: the page without its margins and the frame of a figure.
function inside() {
  const style = getComputedStyle(main);
  const narrow = main.clientWidth < 640;
  return Math.max(240, Math.floor(main.clientWidth - parseFloat(style.paddingLeft) * 2 - (narrow ? 6 : 22)));
}

function render() {
  if (refused) return;
  state.now = Date.now() / 1000 + state.offset;
  state.width = inside();
  show(main, PAGES[page].view(state));
  const name = state.overview?.name ?? "Covey";
  document.title = page === "federation" ? `${name} · Covey` : `${PAGES[page].title(state)} · ${name}`;
  document.getElementById("name").textContent = name;
  for (const link of document.querySelectorAll("[data-page]")) {
    const here = link.dataset.page === page || (page === "cohort" && link.dataset.page === "federation");
    if (here) link.setAttribute("aria-current", link.dataset.page === page ? "page" : "true");
    else link.removeAttribute("aria-current");
  }
  renderLine();
}

function renderLine() {
  const found = state.overview;
  const line = document.getElementById("line");
  const words = {
    connecting: "Connecting",
    live: found?.running === false ? "The server is not running" : "Live",
    lost: state.heardAt === null ? "The server does not answer; trying again"
      : `Connection lost; this was known at ${atClock(state.heardAt)} (${ago(state.heardAt, Date.now() / 1000)}). Trying again`,
    refused: "Waiting for the token",
  };
  line.dataset.state = state.connection === "live" && found && !found.health.alive.ok ? "ill" : state.connection;
  document.getElementById("connection").textContent = words[state.connection];
}

function say(text) {
  document.getElementById("told").textContent = text;
}

function tell(connection) {
  if (connection === "live") state.heardAt = Date.now() / 1000;
  if (connection === state.connection) return;
  if (connection === "lost") say("The connection to the server is lost; trying again.");
  else if (state.connection === "lost") {
    say("The connection is back.");
    readSoon();
  }
  state.connection = connection;
  renderLine();
}

function take(overview) {
  state.overview = overview;
  state.offset = overview.at - Date.now() / 1000;
  render();
}

function happened({ kind, cohort: name }) {
  if (kind === "split") say(`Cohort ${name} has split.`);
  if (kind === "merge") say(`Cohorts were merged into ${name}.`);
  if (page === "federation" || (page === "cohort" && state.parameter.startsWith(name))) readSoon();
}

function go(event) {
  const link = event.target.closest("a[href^='/']");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  history.pushState(null, "", link.getAttribute("href"));
  turn();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

function turn() {
  findPage();
  render();
  readPage();
}

async function begin() {
  await enterByAddress();
  findPage();
  document.addEventListener("click", go);
  addEventListener("popstate", turn);
  new ResizeObserver(() => { if (inside() !== state.width) render(); }).observe(main);
  try {
    take(await read("/api/overview"));
  } catch {
    if (refused) return;
    tell("lost");
  }
  readPage();
  follow({ after: state.overview?.read_to ?? 0, tell, on: { standing: take, happening: happened, again: readSoon } });
  setInterval(() => {
    if (document.hidden) return;
    const every = PAGES[page].everySeconds;
    if (every && state.connection === "live" && Date.now() - readAt > every * 1000) readPage();
    render();
  }, 1000);
}

begin();
