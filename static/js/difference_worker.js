// Compares long texts beside the page, which stays answerable.
import { compute } from "./difference.js";

self.onmessage = async ({ data }) => self.postMessage(await compute(data.there, data.here));
