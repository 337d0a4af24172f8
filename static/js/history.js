// Two answers to one prompt, and what differs between them, word by word.
import { differences, draw } from "./words.js";

async function show() {
  const into = document.querySelector("[data-diff]");
  const [there, here] = ["beside", "read"].map((name) => document.querySelector(`[data-text="${name}"]`)?.textContent);
  if (!into || there == null || here == null) return;
  const said = document.querySelector("[data-diff-said]");
  said.textContent = "comparing …";
  try {
    const parts = await differences(there, here);
    draw(into, parts);
    said.textContent = parts.some((part) => part.side !== "both") ? "" : "the two are the same";
    document.querySelector("[data-history]").classList.add("compared");
  } catch {
    said.textContent = "This browser could not compare them; they stand side by side.";
  }
}

show();
