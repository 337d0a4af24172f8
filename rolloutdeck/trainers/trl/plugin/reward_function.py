"""Records what a reward function of TRL scores: for trainers with TRL's classes that the callback does not fit."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.protocol import EARLIER_EQUAL_KEY
from rolloutdeck.trainers.common import EqualSampleMarker, catch_errors

# What TRL passes to a reward function besides the columns of the data set. `completion_ids` is recorded.
EXTRA_ARGUMENTS = ("trainer_state", "log_extra", "log_metric", "environments")


def record_reward(run: Run, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a reward function with the same name and results, for `reward_funcs`, that records each call.

    Its samples have prompt, completion, tokens, score and the columns of the data set, with the step of the trainer.
    TRL does not tell a reward function that it evaluates: a column `split` with the value `eval` does. The result is
    async if `function` is, because TRL calls those in another way.
    """
    counter = EqualSampleMarker()  # TRL may call it several times in a step
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def score_async(*args: Any, **columns: Any) -> Any:
            scores = await function(*args, **columns)
            record_scores(run, columns, scores, counter)
            return scores

        return score_async

    @functools.wraps(function)
    def score(*args: Any, **columns: Any) -> Any:
        scores = function(*args, **columns)
        record_scores(run, columns, scores, counter)
        return scores

    return score


@catch_errors
def record_scores(run: Run, columns: Mapping[str, Any], scores: Any, counter: EqualSampleMarker) -> None:
    of_rows = {name: values for name, values in columns.items() if name not in EXTRA_ARGUMENTS}
    rows = {name: values for name, values in of_rows.items() if len(values) == len(scores)}
    split = "eval" if set(rows.pop("split", ())) == {"eval"} else "train"
    rows["prompt"], rows["response"] = rows.pop("prompts"), rows.pop("completions")
    rows["response_ids"] = rows.pop("completion_ids", None)
    samples = {name: values for name, values in {**rows, "score": scores}.items() if values is not None}
    step = columns["trainer_state"].global_step + (split == "train")  # incremented only after a train step
    texts = [
        {"prompt": prompt, "response": text} for prompt, text in zip(rows["prompt"], rows["response"], strict=True)
    ]
    counter.mark_rows(texts, (step, split))
    if any(EARLIER_EQUAL_KEY in text for text in texts):
        samples[EARLIER_EQUAL_KEY] = [text.get(EARLIER_EQUAL_KEY, 0) for text in texts]
    run.log_samples(samples, step, split)
