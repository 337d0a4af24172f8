// Keys that wait until the page has loaded what they act on. The queue itself is early_keys.js, which loads first.
const MISSING = { waitFor: (promise) => promise, drop: () => [], names: () => [], start() {} }; // that script was not loaded
const { waitFor, drop, names, start } = globalThis.keyQueue ?? MISSING;

export { waitFor as holdKeys, drop as dropKeys, names as listWaitingKeys, start as startKeys };
