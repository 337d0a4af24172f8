// Compares long texts in a Worker, so that the page remains responsive.
import { computeWordDiff } from "./word_diff.js";

// The page hears nothing of a promise that is rejected here.
self.onmessage = async ({ data }) => {
  const answer = computeWordDiff(data.there, data.here, data.always);
  self.postMessage(await answer.catch((error) => ({ error: error.message })));
};
