// Texts in the reader's language. English is what stands in the scripts; for others the page loads a catalogue first:
// each text's translation, or one for each form, and the form that a count takes (dashboard/pages/settings/language.py).
const { texts = {}, form = (n) => n !== 1 } = globalThis.catalogue ?? {};

export const gettext = (text) => [texts[text] ?? text].flat()[0];
export const ngettext = (one, many, count) => (texts[one] ?? [one, many])[Number(form(count))];

// "{count} new" with its holes filled.
export const fill = (text, holes) => text.replace(/\{(\w+)\}/g, (hole, name) => holes[name] ?? hole);
