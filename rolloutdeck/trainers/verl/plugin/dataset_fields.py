"""Copies the data set's fields of a prompt to its answers in fully async's rollouter, as V0 has them.

verl replaces the row of the data set by the worker's answer, which has neither data source nor ground truth: without
this copy the trainer's process does not have them, and verl's own file there has `gts: null`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import bind_arguments, catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin import async_fit
from rolloutdeck.trainers.verl.plugin.session import find_verl_session

DATASET_FIELDS = ("data_source", "reward_model", "extra_info")


def patch(module: ModuleType) -> None:
    wrap_method(module.FullyAsyncAgentLoopManager, "generate_sequences_single", wrap_generate_sequences)
    async_fit.patch_rollouter(module)


def wrap_generate_sequences(original: Callable[..., Any]) -> Callable[..., Any]:
    async def generate_sequences_single(self: Any, *args: Any, **kwargs: Any) -> Any:
        prompt_fields = read_prompt_fields(bind_arguments(original, (self, *args), kwargs))
        answers = await original(self, *args, **kwargs)
        if prompt_fields:
            copy_dataset_fields(self.config, prompt_fields, answers)
        return answers

    return generate_sequences_single


@catch_errors
def read_prompt_fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return dict(arguments["prompts"].non_tensor_batch)


@catch_errors
def copy_dataset_fields(config: Any, prompt_fields: dict[str, Any], answers: Any) -> None:
    if find_verl_session(config) is None:
        return
    for name in DATASET_FIELDS:
        if name in prompt_fields and len(prompt_fields[name]) == len(answers):
            answers.non_tensor_batch.setdefault(name, prompt_fields[name])
