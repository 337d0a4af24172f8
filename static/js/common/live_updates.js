// Live updates: a WebSocket sends change notifications, and each panel requests its normal URL again. A lost notification
// does no harm: the server sends one after each connect. Without a socket the page polls every five seconds.
import { fill, gettext } from "./i18n.js";
import { announceSignedOut, buildUrl, countUserRequests, forgetPanel, requestQuietly, swapPanel, waitForUserRequests } from "./panel.js";

// In ms. All listeners get a notification at once, so the delay grows with their number. A slow server gets fewer requests.
const DELAY = 60, JITTER = 120, JITTER_PER_LISTENER = 12, MAX_JITTER = 10000, PAUSE = 1, MAX_PAUSE = 10000, TIMEOUT = 30000;
const MIN_RETRY = 500, MAX_RETRY = 30000, POLL = 5000, AGE = 20000, POLL_AFTER_FAILURES = 3;
const { feed, topics } = document.body.dataset;
const link = document.getElementById("link");
const flights = new Map();
let socket, polling, scheduled, handling = false, failures = 0, missed = false, listeners = 1, pauseUntil = 0;
let pending = [], wasConnected = false;

// --- panels -----------------------------------------------------------------------------------------------------------

const page = () => document.getElementById("step-page");
let holds = () => false;

// `decide(panel, html)` returns true if the new content of a panel with `data-hold` waits until the user asks for it.
export const holdPanels = (decide) => (holds = decide);

function concerns(panel, changes) {
  if (!panel.hasAttribute("data-hold")) return true;
  const { word, step } = page()?.dataset ?? {};
  if (!word || word === "all") return true;
  return changes.some((change) => change.step == null || String(change.step) === step);
}

function refreshAll(changes) {
  document.dispatchEvent(new CustomEvent("deck:changed", { detail: changes }));
  const panels = [...document.querySelectorAll("[data-live]")].filter((panel) => concerns(panel, changes));
  return Promise.all(panels.map(refresh));
}

// Each panel has at most one request in flight and one queued.
async function refresh(panel) {
  const flight = flights.get(panel.id);
  if (flight) return void (flight.again = true);
  const mine = { again: false };
  flights.set(panel.id, mine);
  try {
    await load(panel);
  } catch {
    // The next notification or reconnect requests it again.
  } finally {
    flights.delete(panel.id);
    if (mine.again) await refresh(panel);
  }
}

function panelUrl(panel) {
  if (panel.dataset.url) return panel.dataset.url;
  if ("exact" in panel.dataset) return buildUrl();
  const rows = panel.querySelectorAll("tr[data-id]").length;
  return buildUrl({ start: rows > 50 ? rows : "", sel: "" });
}

// Some panels show the time since the last update.
setInterval(() => document.hidden || document.querySelectorAll("[data-ages]").forEach(refresh), AGE);

// What the user has asked for in the meantime is newer than an answer, so the panel is requested again.
async function load(panel, force = false) {
  await waitForUserRequests(panel);
  const from = panelUrl(panel), step = page()?.dataset.step, count = countUserRequests(panel);
  const html = await requestQuietly(panel, from, AbortSignal.timeout(TIMEOUT));
  if (!panel.isConnected) return;
  if (from !== panelUrl(panel) || step !== page()?.dataset.step || count !== countUserRequests(panel)) {
    forgetPanel(panel);
    return load(panel, force);
  }
  if (html === null) return;
  if (!panel.hasAttribute("data-live") && !force) return forgetPanel(panel); // meanwhile its rows must not move
  if (force || !panel.hasAttribute("data-hold") || !holds(panel, html)) swapPanel(panel, html);
  else forgetPanel(panel);
}

// Shows the content of a panel that waits. Throws an error if the server does not answer.
export function showWaiting(panel) {
  forgetPanel(panel);
  return load(panel, true);
}

// A panel that is not live keeps its rows. When it is live again, it requests what it has missed.
export function setLive(panel, yes) {
  if (panel.hasAttribute("data-live") === yes) return;
  panel.toggleAttribute("data-live", yes);
  if (yes) refresh(panel);
}

// --- the socket -------------------------------------------------------------------------------------------------------

// A hidden page keeps none: when it is shown, it asks for everything.
function notify(message) {
  listeners = message.listeners ?? listeners;
  if (document.hidden) return void (missed = true);
  pending.push(message);
  scheduled ??= setTimeout(handlePending, delay());
}

const jitter = () => Math.random() * Math.min(MAX_JITTER, JITTER + JITTER_PER_LISTENER * listeners);
const delay = () => Math.max(DELAY + jitter(), pauseUntil - performance.now());

// Notifications that arrive during a refresh are handled together, after a pause as long as the refresh.
async function handlePending() {
  const changes = pending;
  pending = [];
  const began = performance.now();
  handling = true;
  await refreshAll(changes);
  handling = false;
  pauseUntil = performance.now() + Math.min(MAX_PAUSE, PAUSE * (performance.now() - began));
  scheduled = pending.length ? setTimeout(handlePending, delay()) : undefined;
}

// What the user has saved is shown without the pause.
document.addEventListener("deck:saved", ({ detail }) => {
  if (detail.error) return;
  pauseUntil = 0;
  if (!pending.length || handling) return;
  clearTimeout(scheduled);
  scheduled = setTimeout(handlePending, delay());
});

function connect() {
  socket = new WebSocket(location.origin.replace(/^http/, "ws") + feed);
  socket.onopen = () => socket.send(JSON.stringify({ topics: topics.split(" "), hidden: document.hidden }));
  socket.onmessage = (event) => {
    failures = 0;
    setConnected(true);
    notify(JSON.parse(event.data));
  };
  socket.onclose = (event) => {
    if (event.code === 4401) announceSignedOut(); // if the page stays, it connects again after a sign-in in another tab
    const wait = Math.min(MAX_RETRY, MIN_RETRY * 2 ** failures) * (0.75 + Math.random() / 2);
    failures += 1;
    setConnected(false, wait);
    setTimeout(connect, wait);
  };
}

function setConnected(yes, wait = 0) {
  if (yes && !(link.hidden && wasConnected)) document.dispatchEvent(new CustomEvent("deck:connected"));
  wasConnected ||= yes;
  document.body.classList.toggle("disconnected", !yes);
  link.hidden = yes;
  const seconds = Math.ceil(wait / 1000);
  if (!yes) link.textContent = fill(gettext("disconnected, retrying in {seconds} s"), { seconds });
  const poll = !yes && failures >= POLL_AFTER_FAILURES;
  if (poll) polling ??= setInterval(() => document.hidden || refreshAll([{}]), POLL);
  else if (yes) polling = void clearInterval(polling);
}

document.addEventListener("visibilitychange", () => {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ hidden: document.hidden }));
  if (document.hidden || !missed) return;
  missed = false;
  notify({});
});

// After the scripts of the page: they decide what waits.
export const startLiveUpdates = () => topics && connect();
