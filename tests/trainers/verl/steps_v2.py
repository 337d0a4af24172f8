"""Run with verl 0.8: its RolloutSkip (V2) writes steps, or loads them from a folder.

    verl_v2_steps.py write|load FOLDER STEPS OVERRIDE...

Generates steps 1 to STEPS as `verl_steps.py write` does, or must not generate and compares as its `load` does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import verl
from batches import build_batch, build_live_columns, convert_batch, save_or_compare
from hydra import compose, initialize_config_dir
from verl.protocol import DataProto
from verl.utils.rollout_skip import RolloutSkip


class Workers:
    """What V2 wraps: the group whose `generate_sequences` is called once a step."""

    def __init__(self, config: Any, may_generate: bool) -> None:
        self.config, self.may_generate, self.calls = config, may_generate, 0

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        self.calls += 1
        assert self.may_generate, "a step was generated, not replayed"
        return build_batch(self.config, self.calls, self.config.data.train_batch_size)


def main(action: str, folder: str, steps: str, *overrides: str) -> None:
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", overrides=list(overrides))
    workers = Workers(config, action == "write")
    RolloutSkip(config, workers).wrap_generate_sequences()
    for step in range(1, int(steps) + 1):
        rows = build_live_columns(step, config.data.train_batch_size * config.actor_rollout_ref.rollout.n)
        prompts = DataProto.from_dict(non_tensors=rows, meta_info={"global_steps": step})
        save_or_compare(convert_batch(workers.generate_sequences(prompts)), into, step, write=action == "write")


if __name__ == "__main__":
    main(*sys.argv[1:])
