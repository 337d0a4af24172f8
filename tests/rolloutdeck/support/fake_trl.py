"""A fake of TRL's trainer, as TRL is not installed. It has the methods that we wrap or call and the attributes that we
read, of TRL 1.16.0, `trainer/grpo_trainer.py`. `tests/trainers/trl` tests the real one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tests.rolloutdeck.support.fake_server import Receiver

PROMPTS = ["1+1?", "1+1?", "2+2?", "2+2?"]
NAN = float("nan")
IDS = [[7, 8, 2], [7], [7, 0], []]
ARGS = {
    "num_generations": 2, "generation_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 1,
    "max_completion_length": 3, "run_name": "tiny", "output_dir": "out", "save_strategy": "no",
}  # fmt: skip
# Completions by row, which the fake trainer does not generate.
PINNED = [[9, position, 2] for position in range(4)]


class Trainer:
    """One of `world` processes. Each generation responds to `PROMPTS`. The rewards are those of all processes. A
    `rollout_func` returns the completion ids. Callbacks are called as in transformers."""

    def __init__(self, rank: int = 0, world: int = 1, **options: Any) -> None:
        self.accelerator = SimpleNamespace(process_index=rank, num_processes=world)
        self.state, self.model = SimpleNamespace(global_step=0), SimpleNamespace(training=True)
        self.num_generations = self.num_generations_eval = 2
        self.reward_func_names = ["letters", "short"]
        self.reward_weights = torch.tensor([1.0, 0.5])
        self._pending_extra_logs: dict[str, list[Any]] = {}
        self.fails, self.rollout_func, self.generated = False, None, 0
        self.columns: dict[str, Any] = {}  # of the data set
        self._tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0}, eos_token_id=2, pad_token_id=0)
        self.model.config = SimpleNamespace(_name_or_path="")
        self.args = SimpleNamespace(**ARGS, to_dict=lambda: dict(ARGS))
        self.callback_handler = SimpleNamespace(callbacks=[])
        self.processing_class = self._tokenizer
        vars(self).update(options)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        self._pending_extra_logs = {"first": [text[:1] for text in completions]}
        return torch.tensor(
            [[float(position), NAN] for position in range(len(PROMPTS) * self.accelerator.num_processes)]
        )

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        if self.fails:
            return {"advantages": torch.zeros(1)}  # nothing was scored
        ids = [list(row) for row in (self.call_rollout_func() if self.rollout_func else IDS)]
        texts, ids, mask = self._build_completions(ids)
        self._calculate_rewards(inputs, PROMPTS, texts, completion_ids_list=ids)
        self._pending_extra_logs = {}
        return {
            "prompt_ids": torch.tensor([[0, 5], [0, 5], [6, 5], [6, 5]]),
            "prompt_mask": torch.tensor([[0, 1], [0, 1], [1, 1], [1, 1]]),
            "advantages": torch.tensor([0.5, -0.5, 1.0, -1.0]),
            "old_per_token_logps": torch.full((4, 3), -0.25),
            "tool_mask": mask,
        }

    def _build_completions(self, ids: list[list[int]]) -> Any:
        """Returns the completions as reward functions get them, their ids, and a mask of what the model wrote."""
        return ["abc", "a", "ab", ""], ids, torch.tensor([[1, 0, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])

    def step(self, *, training: bool = True, at: int | None = None) -> None:
        self.model.training = training
        if at is not None:
            self.state.global_step = at
        self._generate_and_score_completions(
            [{"prompt": text, "answer": 3, "image": b"x", **self.columns} for text in PROMPTS]
        )

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> None:
        """Evaluates a dict of data sets as transformers does."""
        for name in eval_dataset or ():
            self.evaluate(eval_dataset=None, ignore_keys=ignore_keys, metric_key_prefix=f"{metric_key_prefix}_{name}")
        if not eval_dataset:
            self.step(training=False)

    def call_rollout_func(self) -> list[list[int]]:
        self.batch = self.rollout_func(PROMPTS, self)
        result: list[list[int]] = self.batch["completion_ids"]
        return result

    def _tokenize_prompts(self, prompts: Any) -> Any:
        return [[5] for _ in prompts], None, {}

    def _generate_single_turn(self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: Any) -> Any:
        self.generated, self.answers = self.generated + 1, num_generations
        return IDS, None

    def train(self, work: Callable[[], None]) -> None:
        """Calls the callbacks as transformers does: `on_train_end` is not called if the training raises."""
        for callback in self.callback_handler.callbacks:
            callback.on_train_begin(self.args, self.state, None)
        work()
        for callback in self.callback_handler.callbacks:
            callback.on_train_end(self.args, self.state, None)

    def add_callback(self, callback: Any) -> None:
        """Adds a callback, whose `on_init_end` finds the trainer in a calling frame, as in transformers."""
        self.callback_handler.callbacks.append(callback)
        callback.on_init_end(self.args, self.state, None)

    def log(self, logs: dict[str, Any], *, first: bool = True) -> None:
        self.state.is_world_process_zero = first
        for callback in self.callback_handler.callbacks:
            callback.on_log(self.args, self.state, None, logs=logs)


class GeneratingTrainer(Trainer):
    """A trainer that generates its completions in a separate method, as those of TRL do."""

    def _generate(self, prompts: Any) -> None:
        time.sleep(0.001)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._generate(PROMPTS)
        return super()._generate_and_score_completions(inputs)


def add(left: int, right: int) -> int:
    """A tool."""
    return left + right


class ToolTrainer(Trainer):
    """A trainer with a tool, which it calls after the first turn, also after a replayed one."""

    tool_result: Any = "3"

    def __init__(self, rank: int = 0, world: int = 1, **options: Any) -> None:
        super().__init__(rank, world, **{"tools": [add], "environment_factories": None, **options})
        self.tool_loops, self.scored = 0, []
        self._metrics: dict[str, dict[str, list[float]]] = {"train": {}, "eval": {}}

    def _tool_call_loop(
        self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, logprobs: Any, *_: Any
    ) -> Any:
        self.tool_loops += 1
        for completion in completions:
            completion.append({"role": "tool", "name": "add", "content": self.tool_result})
        masks = [[1] * len(ids) + [0, 1] for ids in completion_ids]
        return masks, completions, [[*ids, 3, 9] for ids in completion_ids], logprobs, 4, 1, [[] for _ in prompts]

    def _build_completions(self, ids: list[list[int]]) -> Any:
        messages = [[{"role": "assistant", "content": "?"}] for _ in ids]
        masks, messages, ids, _, calls, failures, _ = self._tool_call_loop(PROMPTS, None, ids, messages, None, None, {})
        values = {
            "tools/call_frequency": calls / len(ids),
            "tools/failure_frequency": failures / calls if calls else 0.0,
        }
        for name, value in values.items():
            self._metrics["train"].setdefault(name, []).append(value)
        longest = max(map(len, masks))
        return messages, ids, torch.tensor([[*mask, *[0] * (longest - len(mask))] for mask in masks])

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        self.scored = json.loads(json.dumps(completions, default=str))
        self._pending_extra_logs = {}
        world = self.accelerator.num_processes
        return torch.tensor([[float(position), NAN] for position in range(len(PROMPTS) * world)])


def attach_callback(trl: SimpleNamespace, trainer: Trainer, **options: Any) -> Any:
    callback = trl.Callback("math", **options)
    trainer.add_callback(callback)
    return callback


def end_training(callback: Any) -> None:
    """Ends the training, and waits until all data has been sent."""
    callback.on_train_end(None, None, None)
    callback.run.finish(timeout=60)


def list_completions(deck: Receiver, split: str = "train") -> list[tuple[int, list[list[int]]]]:
    """Returns the step and the ids of each row of each dump."""
    matches = [(int(query["step"]), body) for _, query, body in deck.dumps if query["split"] == split]
    return [(step, [json.loads(line)["response_ids"] for line in body.splitlines()]) for step, body in matches]
