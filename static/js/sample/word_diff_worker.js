// Compares long texts in a Worker, so that the page remains responsive.
import { compute } from "./word_diff.js";

self.onmessage = async ({ data }) => self.postMessage(await compute(data.there, data.here, data.always));
