// KaTeX, fetched when somebody wants to read math.
const KATEX = new URL("../../vendor/katex@0.19.1/", import.meta.url);
const DELIMITERS = [
  { left: "$$", right: "$$", display: true },
  { left: "\\[", right: "\\]", display: true },
  { left: "\\(", right: "\\)", display: false },
  { left: "$", right: "$", display: false },
];
// `maxSize` in em: a rule may not push everything else out of the window. A formula with an error stays text.
const OPTIONS = { delimiters: DELIMITERS, throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20, errorCallback() {} };

const script = (path) =>
  new Promise((done, failed) => document.head.append(Object.assign(document.createElement("script"), { src: new URL(path, KATEX).href, onload: done, onerror: failed })));

let loaded;
function katex() {
  document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("katex.min.css", KATEX).href }));
  return script("katex.min.js").then(() => script("contrib/auto-render.min.js")).then(guard);
}

// One formula that KaTeX cannot cope with (nested too deep, say) stays text; the others are still drawn.
function guard() {
  const { render, ParseError } = window.katex;
  window.katex.render = (...told) => {
    try {
      render(...told);
    } catch (error) {
      throw error instanceof ParseError ? error : new ParseError(error.message);
    }
  };
}

export async function render(root) {
  loaded ??= katex();
  await loaded;
  for (const text of root.querySelectorAll("[data-math]:not([data-done])")) {
    text.dataset.done = "";
    window.renderMathInElement(text, OPTIONS);
  }
}
