"""A fake of slime, which is not installed: samples as in its dumps, with the methods of its `Sample` (slime 624b824a,
`utils/types.py`). `tests/trainers/slime` tests our functions inside the real slime."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from rolloutdeck.safe_pickle.batches.torch_dict import RowConverter, open_torch_dict

DATA = Path(__file__).parents[2] / "data/slime/rollout_data"
Status = enum.Enum(
    "Status", {name.upper(): name for name in ("pending", "completed", "truncated", "aborted", "failed")}
)
DEFAULTS = {
    "group_index": None, "index": None, "rollout_id": None, "prompt": "", "tokens": [], "response": "",
    "response_length": 0, "label": None, "reward": None, "loss_mask": None, "rollout_log_probs": None,
    "weight_versions": [], "remove_sample": False, "metadata": {}, "status": "completed",
}  # fmt: skip


class Sample:
    """Has the attributes of slime's dataclass. A generate function may add others."""

    def __init__(self, **options: Any) -> None:
        vars(self).update({**DEFAULTS, **options})
        self.status = Status(self.status)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Sample:
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "status": self.status.value}


class RolloutFnTrainOutput:
    def __init__(self, samples: list[Any], metrics: Any = None) -> None:
        self.samples, self.metrics = samples, metrics


def load_dump(name: str) -> list[dict[str, Any]]:
    """Returns the samples of a file of slime as dicts of `Sample.to_dict`."""
    rows = RowConverter()
    with open_torch_dict(DATA / name) as saved:
        return [rows.plain(sample) for sample in saved["samples"]]


def read_samples(name: str) -> list[Sample]:
    return [Sample.from_dict(row) for row in load_dump(name)]


def arguments(**options: Any) -> SimpleNamespace:
    """The arguments of slime that our functions read."""
    return SimpleNamespace(
        **{"rollout_batch_size": 8, "n_samples_per_prompt": 4, "reward_key": None, "hf_checkpoint": None, **options}
    )


def modules() -> dict[str, ModuleType]:
    """The modules that our functions import of slime, by name, for `sys.modules`."""
    names = ("slime", "slime.utils", "slime.utils.types", "slime.rollout", "slime.rollout.base_types")
    created = {name: ModuleType(name) for name in names}
    vars(created["slime.utils.types"])["Sample"] = Sample
    vars(created["slime.rollout.base_types"])["RolloutFnTrainOutput"] = RolloutFnTrainOutput
    return created


class Prompts:
    """A data source of numbered groups of samples without responses."""

    def __init__(self) -> None:
        self.count = 0

    def get_samples(self, groups: int) -> list[list[Sample]]:
        first, self.count = self.count, self.count + groups
        return [[Sample(group_index=number, prompt=f"prompt {number}")] for number in range(first, self.count)]


def generate(args: Any, rollout_id: int, data_source: Prompts, evaluation: bool = False) -> Any:
    """The rollout function: what a run of these tests generates if it replays nothing."""
    if evaluation:
        return "an eval"
    for group in (created := data_source.get_samples(args.rollout_batch_size)):
        group[0].response = f"{group[0].prompt} in {rollout_id}"
    return RolloutFnTrainOutput(created)
