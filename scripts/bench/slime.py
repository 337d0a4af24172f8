"""Measures the time that our functions take in slime's rollout manager, for 1,024 samples of 1,000 tokens."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from rolloutdeck.trainers.common import session
from rolloutdeck.trainers.slime.plugin import record
from rolloutdeck.trainers.slime.plugin.session import SlimeSession

ROLLOUTS, ROWS, TOKENS, PROMPT, ANSWERS = 5, 1024, 1000, 200, 8


class Sample:
    """A stand-in with the attributes of slime's sample after its reward."""

    def __init__(self, index: int, ids: list[int]) -> None:
        self.index, self.group_index, self.rollout_id = index, index // ANSWERS, None
        self.prompt, self.response, self.label = f"What is {index // ANSWERS}?", "word " * TOKENS, "4"
        self.tokens, self.response_length, self.loss_mask = ids, TOKENS, [1] * TOKENS
        self.rollout_log_probs, self.reward = [-0.5] * TOKENS, random.random()
        self.status, self.weight_versions, self.metadata = SimpleNamespace(value="completed"), ["3"], {"level": 2}


def blocked(run: Any) -> tuple[float, float]:
    """Returns the ms that the end of a rollout and all calls of the sample hook block slime, medians of some."""
    args = SimpleNamespace(reward_key=None, rollout_batch_size=ROWS // ANSWERS, n_samples_per_prompt=ANSWERS)
    ours = session._sessions["slime"] = SlimeSession(run)
    ended, hooked = [], []
    for rollout in range(ROLLOUTS):
        samples = [Sample(row, random.sample(range(30000), PROMPT + TOKENS)) for row in range(ROWS)]
        hooked.append(timed(partial(hook, args, rollout, samples)))
        ours.flush(60)  # in slime they arrive over minutes, so the rows exist before the rollout ends
        ended.append(timed(partial(end, args, rollout, samples)))
        ours.flush(60)
    del session._sessions["slime"]
    return statistics.median(ended), statistics.median(hooked)


def hook(args: Any, rollout: int, samples: list[Sample]) -> None:
    for sample in samples:
        record.sample_hook(args, sample, rollout_id=rollout)


def end(args: Any, rollout: int, samples: list[Sample]) -> None:
    groups = [samples[first : first + ANSWERS] for first in range(0, ROWS, ANSWERS)]
    record.all_samples(args, groups, None)
    record.log_rollout(rollout, args, samples, {}, 1.0)


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return (time.perf_counter() - began) * 1000
