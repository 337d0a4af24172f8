// Characters that are invisible or change the direction of a text, as `mark_control_characters` in dashboard/pages/common/formatting.py.
export const INVISIBLE = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u200b\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;

export const formatCode = (char) => `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

// For names in canvases, tooltips and labels: `loss<U+202E>gnp` has the code in place of the character.
export const nameInvisible = (text) => text.replace(INVISIBLE, (char) => `<${formatCode(char)}>`);
