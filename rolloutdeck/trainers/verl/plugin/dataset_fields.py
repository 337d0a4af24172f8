"""Fully async's rollouter: what the dataset says of a prompt travels with its answers, as it does in V0.

verl replaces the row of the dataset by the worker's answer, which has neither data source nor ground truth: the
trainer's process could not tell them, and verl's own file there has `gts: null`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from rolloutdeck.trainers.common import catch_errors, wrap_method
from rolloutdeck.trainers.verl.plugin.session import find_verl_session

DATASET_FIELDS = ("data_source", "reward_model", "extra_info")


def patch(module: ModuleType) -> None:
    wrap_method(module.FullyAsyncAgentLoopManager, "generate_sequences_single", wrap_generate_sequences)


def wrap_generate_sequences(original: Callable[..., Any]) -> Callable[..., Any]:
    async def generate_sequences_single(self: Any, prompts: Any) -> Any:
        known = dict(prompts.non_tensor_batch)
        found = await original(self, prompts)
        carry(self.config, known, found)
        return found

    return generate_sequences_single


@catch_errors
def carry(config: Any, known: dict[str, Any], found: Any) -> None:
    if find_verl_session(config) is None:
        return
    for name in DATASET_FIELDS:
        if name in known and len(known[name]) == len(found):
            found.non_tensor_batch.setdefault(name, known[name])
