// Live: one WebSocket says that something changed, the page asks its ordinary address again. A lost ring costs nothing,
// because every (re)connect rings once; without a socket the page asks every five seconds.
import { fill, gettext } from "./i18n.js";
import { address, ask, place, settled } from "./panel.js";

// In ms. A ring is heard by all at once, so the more listen, the wider they spread; a busy server is asked less often.
const GATHER = 60, JITTER = 120, EACH = 25, WIDEST = 10000, REST = 2, PATIENCE = 30000;
const FIRST_WAIT = 500, LAST_WAIT = 30000, POLL = 5000, AGE = 20000, GIVE_UP_AFTER = 3;
const { feed, topics } = document.body.dataset;
const link = document.getElementById("link");
const flights = new Map();
let socket, polling, gathering, failures = 0, missed = false, listeners = 1, rest = 0;
let wanted = [];

// --- panels -----------------------------------------------------------------------------------------------------------

const page = () => document.getElementById("step-page");
const field = () => document.activeElement?.matches("input:not([type=range]), textarea, select");
// A list that somebody works in stays as it is: new rows wait behind a button.
const held = () => field() || new URLSearchParams(location.search).has("sel");

function concerns(panel, rings) {
  if (!panel.hasAttribute("data-hold")) return true;
  const { word, step } = page()?.dataset ?? {};
  if (!word || word === "latest" || word === "all") return true;
  return rings.some((ring) => ring.step == null || String(ring.step) === step);
}

function refreshAll(rings) {
  document.dispatchEvent(new CustomEvent("deck:ring", { detail: rings }));
  const panels = [...document.querySelectorAll("[data-live]")].filter((panel) => concerns(panel, rings));
  return Promise.all(panels.map(refresh));
}

// One request in flight and one waiting for each panel.
async function refresh(panel) {
  const flight = flights.get(panel.id);
  if (flight) return void (flight.again = true);
  const mine = { again: false };
  flights.set(panel.id, mine);
  try {
    await load(panel);
  } catch {
    // The next ring, or the reconnect after it, asks again.
  } finally {
    flights.delete(panel.id);
    if (mine.again) await refresh(panel);
  }
}

function panelAddress(panel) {
  if (panel.dataset.url) return panel.dataset.url;
  if ("exact" in panel.dataset) return address();
  const rows = panel.querySelectorAll("tr[data-id]").length;
  return address({ start: rows > 50 ? rows : "", sel: "" });
}

// Some panels say how long nothing has happened.
setInterval(() => document.hidden || document.querySelectorAll("[data-ages]").forEach(refresh), AGE);

async function load(panel, force = false) {
  const from = panelAddress(panel);
  const html = await ask(panel, from, { quiet: true, signal: AbortSignal.timeout(PATIENCE) });
  if (!panel.isConnected) return;
  if (from !== panelAddress(panel)) return load(panel, force);
  if (html === null) return;
  if (panel.hasAttribute("data-hold") && held() && !force) return arrived(panel, html);
  place(panel, html);
}

// --- what waits -------------------------------------------------------------------------------------------------------

const order = (root) => [...root.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id).join();

function arrived(panel, html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const next = fresh.querySelector("[data-total]")?.dataset;
  const now = panel.querySelector("[data-total]")?.dataset;
  if (next?.step === now?.step && order(fresh) === order(panel)) return place(panel, html);
  const button = document.querySelector("[data-arrived]");
  if (!next || !now || !button) return;
  const count = next.total - now.total;
  const moved = next.step !== now.step;
  button.hidden = !moved && count <= 0;
  button.dataset.moved = moved;
  button.querySelector("span").textContent = moved ? fill(gettext("step {step} is here"), next) : fill(gettext("{count} new"), { count });
  settled(panel);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-arrived]");
  if (!button) return;
  button.hidden = true;
  if (button.dataset.moved === "true") location.assign(address({ sel: "" }));
  else load(document.getElementById("result"), true);
});

// --- the socket -------------------------------------------------------------------------------------------------------

function ring(message) {
  wanted.push(message);
  listeners = message.listeners ?? listeners;
  if (document.hidden) missed = true;
  else gathering ??= setTimeout(answerRings, wait());
}

const wait = () => Math.max(GATHER + Math.random() * Math.min(WIDEST, JITTER + EACH * listeners), rest - performance.now());

// What rings meanwhile is answered together, after a rest of twice the time that the answers took.
async function answerRings() {
  const rings = wanted;
  wanted = [];
  const began = performance.now();
  await refreshAll(rings);
  rest = performance.now() + REST * (performance.now() - began);
  gathering = wanted.length ? setTimeout(answerRings, wait()) : undefined;
}

function connect() {
  socket = new WebSocket(location.origin.replace(/^http/, "ws") + feed);
  socket.onopen = () => socket.send(JSON.stringify({ topics: topics.split(" ") }));
  socket.onmessage = (event) => {
    failures = 0;
    connected(true);
    ring(JSON.parse(event.data));
  };
  socket.onclose = (event) => {
    if (event.code === 4401) return location.reload();
    const wait = Math.min(LAST_WAIT, FIRST_WAIT * 2 ** failures) * (0.75 + Math.random() / 2);
    failures += 1;
    connected(false, wait);
    setTimeout(connect, wait);
  };
}

function connected(yes, wait = 0) {
  document.body.classList.toggle("disconnected", !yes);
  link.hidden = yes;
  if (!yes) link.textContent = fill(gettext("disconnected, retrying in {seconds} s"), { seconds: Math.ceil(wait / 1000) });
  const poll = !yes && failures >= GIVE_UP_AFTER;
  if (poll) polling ??= setInterval(() => document.hidden || refreshAll([{}]), POLL);
  else if (yes) polling = void clearInterval(polling);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden || !missed) return;
  missed = false;
  ring({});
});

if (topics) connect();
