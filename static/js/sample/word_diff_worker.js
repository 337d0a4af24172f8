// Compares long texts beside the page, which stays answerable.
import { compute } from "./word_diff.js";

self.onmessage = async ({ data }) => self.postMessage(await compute(data.there, data.here));
