// Imports labels of a file: sends its rows in parts, shows the counts, and lists the rows that were not imported.
import { fill, gettext, ngettext } from "../common/i18n.js";
import { buildHeaders, isSignedOut, SIGNED_OUT } from "../common/post.js";
import { writeMessage } from "../common/ui.js";

const MAX_ROWS = 1000; // of one request
const MAX_CHARS = 2_000_000;
const MAX_LISTED = 50;

const box = document.querySelector("[data-import-labels]");
const [status, list, left] = ["[role=status]", "ul", "a[download]"].map((name) => box.querySelector(name));
const buttons = [...box.querySelectorAll("button")];

async function* readLines(file) {
  const reader = file.stream().pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let number = 0;
  for (let done = false; !done; ) {
    const part = await reader.read();
    done = part.done;
    const lines = (rest + (part.value ?? "")).split("\n");
    rest = done ? "" : lines.pop();
    for (const text of lines) {
      number += 1;
      if (text.trim()) yield { number, text };
    }
  }
}

async function* readParts(file) {
  let part = [];
  let chars = 0;
  for await (const line of readLines(file)) {
    if (part.length && (part.length >= MAX_ROWS || chars + line.text.length > MAX_CHARS)) {
      yield part;
      [part, chars] = [[], 0];
    }
    part.push(line);
    chars += line.text.length;
  }
  if (part.length) yield part;
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// Sends the lines as they are: a number of JavaScript has 53 bits.
async function send(chosen, lines) {
  const headers = { "Content-Type": "application/json", ...buildHeaders() };
  const body = `${JSON.stringify(chosen).slice(0, -1)},"rows":[${lines.map(({ text }) => text).join(",")}]}`;
  const noAnswer = gettext("The server does not answer.");
  const response = await fetch(box.dataset.importLabels, { method: "POST", headers, body }).catch(() => {
    throw new Error(noAnswer);
  });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401 || isSignedOut(response, answer)) throw new Error(SIGNED_OUT);
  if (!response.ok) throw new Error(answer.error?.message ?? noAnswer);
  return answer;
}

// A row with its problem, in place of the one that an earlier import has added.
const OLD_PROBLEM = /,?\s*"problem":\s*"(?:[^"\\]|\\.)*"\s*\}$/;
function addProblem(text, problem) {
  const row = parse(text);
  if (!row || typeof row !== "object" || Array.isArray(row)) return JSON.stringify({ line: text, problem });
  const fields = text.trim().replace(OLD_PROBLEM, "}").slice(0, -1);
  return `${fields}${fields.trim() === "{" ? "" : ","}"problem":${JSON.stringify(problem)}}`;
}

function listProblem(line, message) {
  const text = fill(gettext("Line {number}: {message}"), { number: line.number.toLocaleString(), message });
  list.append(Object.assign(document.createElement("li"), { textContent: text }));
}

async function importFile(file, isDryRun) {
  const counts = { rows: 0, new: 0, changed: 0, unchanged: 0, problems: 0 };
  const failed = [];
  const refuse = (line, kind, message) => {
    counts.problems += 1;
    if (counts.problems <= MAX_LISTED) listProblem(line, message);
    const row = addProblem(line.text, `${kind}: ${message}`);
    failed.push(`${row}\n`);
  };
  const chosen = { project: box.dataset.project, dry_run: isDryRun, file: file.name };
  chosen.all_matches = box.querySelector("input[type=checkbox]").checked;
  chosen.time = new Date(file.lastModified).toISOString();
  try {
    for await (const part of readParts(file)) {
      const rows = part.filter((line) => parse(line.text) !== undefined);
      const refused = part.filter((line) => !rows.includes(line)).map((line) => [line, "invalid", gettext("This is not JSON.")]);
      if (rows.length) {
        const answer = await send(chosen, rows);
        for (const name of ["new", "changed", "unchanged"]) counts[name] += answer.labels[name];
        const problems = new Map(answer.problems.map((problem) => [problem.row, problem])); // a row may match several samples
        for (const [row, { kind, message }] of problems) refused.push([rows[row], kind, message]);
      }
      refused.sort(([first], [second]) => first.number - second.number);
      for (const problem of refused) refuse(...problem);
      counts.rows += part.length;
      show(counts, isDryRun);
    }
    if (!counts.rows) status.textContent = gettext("The file has no rows.");
  } catch (error) {
    const text = gettext("{message} {count} rows were sent before. Import the file again to continue.");
    writeMessage(status, fill(text, { message: error.message, count: counts.rows.toLocaleString() }));
  }
  if (failed.length) {
    left.href = URL.createObjectURL(new Blob(failed, { type: "application/x-ndjson" }));
    left.hidden = false;
  }
}

function show(counts, isDryRun) {
  const shown = Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, count.toLocaleString()]));
  const rows = fill(ngettext("{rows} row", "{rows} rows", counts.rows), shown);
  const text = gettext("{new} new, {changed} changed, {unchanged} unchanged, {problems} not imported.");
  status.textContent = `${rows}: ${fill(text, shown)}`;
  if (isDryRun) status.append(" ", gettext("Nothing is stored yet."));
}

box.addEventListener("click", async ({ target }) => {
  const button = target.closest("button");
  if (!button) return;
  const [file] = box.querySelector("input[type=file]").files;
  list.replaceChildren();
  left.hidden = true;
  if (!file) {
    status.textContent = gettext("Choose a file first.");
    return;
  }
  for (const each of buttons) each.disabled = true;
  status.textContent = gettext("Reading…");
  await importFile(file, button.name === "try");
  for (const each of buttons) each.disabled = false;
});
box.hidden = false;
