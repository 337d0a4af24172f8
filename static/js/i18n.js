// Texts in the reader's language. English is what stands in the scripts; for others the page loads a catalogue first.
const { django = {} } = globalThis;

export const gettext = django.gettext ?? ((text) => text);
export const ngettext = django.ngettext ?? ((one, many, count) => (count === 1 ? one : many));

// "{count} new" with its holes filled.
export const fill = (text, holes) => text.replace(/\{(\w+)\}/g, (hole, name) => holes[name] ?? hole);
