// Translated texts. The scripts contain English. For another language the page loads a catalogue first: the translations of
// each text (one per plural form), and the function that selects the plural form (dashboard/pages/settings/preferences.py).
const { texts = {}, form = (n) => n !== 1 } = globalThis.catalogue ?? {};

export const gettext = (text) => [texts[text] ?? text].flat()[0];
export const ngettext = (singular, plural, count) => (texts[singular] ?? [singular, plural])[Number(form(count))];

// Replaces the placeholders of a text: "{count} new".
export const fill = (text, holes) => text.replace(/\{(\w+)\}/g, (hole, name) => holes[name] ?? hole);
