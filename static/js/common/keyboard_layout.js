// Which key the user means on any keyboard layout: by its character, or by its position if the layout has no Latin letters.

const POSITIONS = {
  BracketLeft: "[{", BracketRight: "]}", Slash: "/?", Period: ".>", Comma: ",<",
  ...Object.fromEntries([...Array(10).keys()].map((n) => [`Digit${n}`, `${n}`])),
};
const LAST_LATIN = 0x24f;
let latin = true;

const keyAt = (code) => (/^Key[A-Z]$/.test(code) ? code[3].toLowerCase() + code[3] : (POSITIONS[code] ?? ""));

// The key name, like event.key. Empty with Ctrl, Alt or Meta: those belong to the browser.
export function readKey(event) {
  const { key, code, shiftKey } = event;
  // Other layouts write brackets with AltGr or Alt.
  const third = event.getModifierState("AltGraph") || (event.altKey && "[]{}/?".includes(key));
  if (!third && (event.ctrlKey || event.metaKey || event.altKey)) return "";
  if (key.length !== 1) return key;
  if (/^Key/.test(code)) latin = key.codePointAt(0) <= LAST_LATIN;
  const there = keyAt(code)[shiftKey ? 1 : 0];
  const types = key.codePointAt(0) < 0x80 && (latin || /\d/.test(key));
  return (types && !(/^Digit/.test(code) && !shiftKey && !third)) || !there ? key : there;
}

// A person can turn off the keys that are single characters.
export const isTurnedOff = (key) => key.length === 1 && document.body.dataset.keys === "off";

// During the composition of a word, all keys belong to the input method.
export const isIgnored = (event) =>
  event.isComposing || event.keyCode === 229 || ["Process", "Dead"].includes(event.key) || event.defaultPrevented;
