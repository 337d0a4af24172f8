// Renders math with KaTeX, which is loaded on the first use.
const KATEX = new URL("../../vendor/katex@0.19.1/", import.meta.url);
const DELIMITERS = [
  { left: "$$", right: "$$", display: true },
  { left: "\\[", right: "\\]", display: true },
  { left: "\\(", right: "\\)", display: false },
  { left: "$", right: "$", display: false },
];
// `maxSize` in em: a formula must not push all other text out of the window. A formula with an error remains text.
const OPTIONS = {
  delimiters: DELIMITERS, throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20, errorCallback() {},
};

const loadScript = (path) =>
  new Promise((done, failed) => {
    const src = new URL(path, KATEX).href;
    document.head.append(Object.assign(document.createElement("script"), { src, onload: done, onerror: failed }));
  });

let loaded;
function loadKatex() {
  const href = new URL("katex.min.css", KATEX).href;
  document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
  return loadScript("katex.min.js").then(() => loadScript("contrib/auto-render.min.js")).then(catchErrors);
}

// A formula that KaTeX cannot render (for example nested too deep) remains text. The others are still rendered.
function catchErrors() {
  const { render, ParseError } = window.katex;
  window.katex.render = (...args) => {
    try {
      render(...args);
    } catch (error) {
      throw error instanceof ParseError ? error : new ParseError(error.message);
    }
  };
}

export async function renderMath(root) {
  loaded ??= loadKatex().catch((error) => {
    loaded = undefined; // the next sample tries again
    throw error;
  });
  await loaded;
  for (const text of root.querySelectorAll("[data-math]:not([data-done])")) {
    text.dataset.done = "";
    window.renderMathInElement(text, OPTIONS);
  }
}
