// Which key a person means, on any keyboard: by what it types, or by its place where the layout types no Latin letters.

const PLACES = {
  BracketLeft: "[{", BracketRight: "]}", Slash: "/?", Period: ".>", Comma: ",<",
  ...Object.fromEntries([...Array(10).keys()].map((n) => [`Digit${n}`, `${n}`])),
};
const LAST_LATIN = 0x24f;
let latin = true;

const place = (code) => (/^Key[A-Z]$/.test(code) ? code[3].toLowerCase() + code[3] : (PLACES[code] ?? ""));

// The key by name, like event.key; empty where Ctrl, Alt or Meta make it somebody else's.
export function keyOf(event) {
  const { key, code, shiftKey } = event;
  const third = event.getModifierState("AltGraph") || (event.altKey && "[]{}/?".includes(key)); // how other layouts write brackets
  if (!third && (event.ctrlKey || event.metaKey || event.altKey)) return "";
  if (key.length !== 1) return key;
  if (/^Key/.test(code)) latin = key.codePointAt(0) <= LAST_LATIN;
  const there = place(code)[shiftKey ? 1 : 0];
  const types = key.codePointAt(0) < 0x80 && (latin || /\d/.test(key));
  return (types && !(/^Digit/.test(code) && !shiftKey && !third)) || !there ? key : there;
}

// While a word is being composed every key belongs to the input method.
export const asleep = (event) => event.isComposing || event.keyCode === 229 || event.key === "Process" || event.key === "Dead" || event.defaultPrevented;
