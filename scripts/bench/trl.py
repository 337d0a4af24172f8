"""Measures how long the TRL callback blocks the trainer's thread: 1,024 samples of 1,000 tokens, without a model."""

from __future__ import annotations

import statistics
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from rolloutdeck.trainers.trl.plugin.capture import GenerationCapture
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration
from rolloutdeck.trainers.trl.plugin.session import TrlSession

STEPS, ROWS, TOKENS, ANSWERS = 5, 1024, 1000, 8


class Trainer:
    """A stand-in with the data of GRPOTrainer after a generation. Its methods return immediately."""

    reward_func_names = ("correct", "short")
    num_generations = ANSWERS

    def __init__(self) -> None:
        self.model, self.accelerator = SimpleNamespace(training=True), SimpleNamespace(process_index=0)
        self.state, self.reward_weights = SimpleNamespace(global_step=0), torch.ones(2)
        self.processing_class = SimpleNamespace(eos_token_id=1, pad_token_id=0)
        self.rewards, ids = torch.rand(ROWS, 2), torch.randint(2, 30000, (ROWS, TOKENS))
        self.ids = ids.tolist()
        self.prompts = [[{"role": "user", "content": f"What is {row // ANSWERS}?"}] for row in range(ROWS)]
        self.completions = [[{"role": "assistant", "content": "word " * TOKENS}] for _ in range(ROWS)]
        self.batch = {"prompt_ids": ids[:, :200], "prompt_mask": torch.ones(ROWS, 200, dtype=torch.long)}
        self.batch |= {"advantages": torch.rand(ROWS), "sampling_per_token_logps": torch.rand(ROWS, TOKENS)}

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        return self.rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._calculate_rewards(inputs, self.prompts, self.completions, self.ids)
        return self.batch


def blocked(run: Any) -> float:
    """Returns the ms that a generation blocks the trainer, median over some steps."""
    trainer, session, times = Trainer(), TrlSession(run), []
    inputs = [{"prompt": prompt, "ground_truth": "4"} for prompt in trainer.prompts]

    def log_rows(generation: CapturedGeneration, token_groups: set[int]) -> None:
        run.log_samples(generation.rows(token_groups), generation.step, "train", columns="native")

    def record(generation: CapturedGeneration) -> None:
        session.submit(partial(log_rows, generation, session.select_token_groups(generation)), ROWS)

    GenerationCapture(trainer, record)
    for step in range(STEPS):
        trainer.state.global_step = step
        began = time.perf_counter()
        trainer._generate_and_score_completions(inputs)
        times.append(time.perf_counter() - began)
        session.flush(60)
    return statistics.median(times) * 1000
