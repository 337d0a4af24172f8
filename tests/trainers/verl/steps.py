"""Run by the trainers' environment: real verl writes steps for its rollout skip, or loads them from a folder.

    verl_steps.py write|load|join KIND FOLDER OVERRIDE...

KIND is `rollout` (V0), `async_rollout` (fully async: a step is a prompt) or `rollout_tq` (V1, with a real
TransferQueue). The overrides go through Hydra onto verl's own configuration, which names the folder and the steps.
`write` generates them and saves what was generated as FOLDER/{step}.pt too, in plain tensors and lists.
`load` must not generate: it compares what verl's SkipManager returns for each step with FOLDER/{step}.pt, value by
value, and prints `step {step} is equal`. `join` loads too and then joins the batch with a live one, as V0's trainer
does, whose columns are those of another step; it prints `step {step} is joined`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from batches import build_batch, build_live_columns, build_object_array, convert_batch, convert_value, save_or_compare
from hydra import compose, initialize_config_dir
from verl.protocol import DataProto
from verl.utils.skip import SkipManager

ROWS_OF = {"rollout": lambda config: config.data.train_batch_size, "async_rollout": lambda config: 1}


def load_config(overrides: list[str]) -> Any:
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    SkipManager.init(config)
    return config


class Generator:
    """Where verl decides between loading and generating: the two methods it puts its decorator on."""

    def __init__(self, config: Any, may_generate: bool) -> None:
        self.config, self.may_generate = config, may_generate

    @SkipManager.annotate(role="rollout")
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        return self.generate(SkipManager.step)

    @SkipManager.annotate(role="async_rollout")
    def generate_sequences_single(self, prompts: DataProto) -> DataProto:
        return self.generate(int(prompts.non_tensor_batch["uid"][0].rsplit("_", 1)[1]))

    def generate(self, step: int) -> DataProto:
        assert self.may_generate, f"step {step} was generated, not replayed"
        role = "rollout" if self.config.skip.rollout.enable else "async_rollout"
        return build_batch(self.config, step, ROWS_OF[role](self.config))


def join_steps(config: Any, steps: list[int]) -> None:
    generator = Generator(config, may_generate=False)
    for step in steps:
        SkipManager.set_step(step)
        loaded = generator.generate_sequences(DataProto.from_dict(tensors={"x": torch.zeros(1, 1)}))
        DataProto.from_dict(
            tensors={"x": torch.zeros(len(loaded), 1)}, non_tensors=build_live_columns(99, len(loaded))
        ).union(loaded)
        print(f"step {step} is joined")


def process_padded_steps(kind: str, config: Any, steps: list[int], into: Path, *, write: bool) -> None:
    generator = Generator(config, write)
    for step in steps:
        SkipManager.set_step(step)
        uid = build_object_array([f"uid_sample_0_{step}"])
        prompts = DataProto.from_dict(tensors={"x": torch.zeros(1, 1)}, non_tensors={"uid": uid})
        generate = generator.generate_sequences if kind == "rollout" else generator.generate_sequences_single
        save_or_compare(convert_batch(generate(prompts)), into, step, write=write)


def process_queued_steps(config: Any, steps: list[int], into: Path, *, write: bool) -> None:
    """V1: rows go into a real queue, and its skip role dumps them from there, or puts what was dumped back in."""
    import ray
    import transfer_queue as tq

    ray.init(num_cpus=3, include_dashboard=False, logging_level="error", log_to_driver=False)
    config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
    tq.init(config.transfer_queue)
    role = SkipManager.skip_instances["rollout_tq"]
    try:
        for step in steps:
            (put_rows if write else load_rows)(tq, role, config, step)
            save_or_compare(read_rows(tq, config, step), into, step, write=write)
            tq.kv_clear(partition_id="train", keys=list(tq.kv_list(partition_id="train")["train"]))
    finally:
        tq.close()
        ray.shutdown()


def build_uids(step: int, config: Any) -> list[str]:
    return [f"{step:08x}-0000-4000-8000-{prompt:012x}" for prompt in range(config.data.train_batch_size)]


def put_rows(tq: Any, role: Any, config: Any, step: int) -> None:
    from tensordict import TensorDict
    from tensordict.tensorclass import NonTensorData, NonTensorStack
    from transfer_queue import KVBatchMeta

    n = config.actor_rollout_ref.rollout.n
    keys = [f"{uid}_{session}_0" for uid in build_uids(step, config) for session in range(n)]
    dice = torch.Generator().manual_seed(step)
    sizes = torch.randint(1, config.data.max_response_length, (len(keys),), generator=dice).tolist()

    def build_jagged(kind: torch.dtype) -> torch.Tensor:
        rendered = [(torch.rand(size, generator=dice) * 90).to(kind) for size in sizes]
        return torch.nested.as_nested_tensor(rendered, layout=torch.jagged)

    fields = {name: build_jagged(torch.int64) for name in ("prompts", "responses", "response_mask", "input_ids")}
    fields |= {name: build_jagged(torch.float32) for name in ("rm_scores", "rollout_log_probs")}
    for name, values in {
        "uid": [key.split("_")[0] for key in keys],
        "data_source": ["gsm8k"] * len(keys),
        "reward_model": [{"style": "rule", "ground_truth": str(row)} for row in range(len(keys))],
        "extra_fields": [{"reward_extra_info": {"acc": np.float64(row % 2)}} for row in range(len(keys))],
        "num_turns": [2] * len(keys),
    }.items():
        fields[name] = NonTensorStack(*[NonTensorData(value) for value in values])
    tags = [{"status": "success", "response_len": size, "global_steps": step} for size in sizes]
    tq.kv_batch_put(keys=keys, fields=TensorDict(fields, batch_size=[len(keys)]), tags=tags, partition_id="train")
    role.prepare_data(step, KVBatchMeta(keys=keys, tags=tags, partition_id="train"), global_steps=step)


def load_rows(tq: Any, role: Any, config: Any, step: int) -> None:
    assert role.maybe_load_and_inject(step, build_uids(step, config)), f"step {step} was generated, not replayed"


def read_rows(tq: Any, config: Any, step: int) -> dict[str, Any]:
    """What the trainer's own read of the queue gives for each row of a step."""
    n = config.actor_rollout_ref.rollout.n
    keys = [f"{uid}_{session}_0" for uid in build_uids(step, config) for session in range(n)]
    data = tq.kv_batch_get(keys=keys, partition_id="train")
    result: dict[str, Any] = {}
    for name in sorted(data.keys()):
        value = data[name]
        result[name] = list(value.unbind()) if isinstance(value, torch.Tensor) else convert_value(list(value))
    return result


def main(action: str, kind: str, folder: str, *overrides: str) -> None:
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    config = load_config(list(overrides))
    steps = list(config.skip[kind].steps)
    if action == "join":
        join_steps(config, steps)
    elif kind == "rollout_tq":
        process_queued_steps(config, steps, into, write=action == "write")
    else:
        process_padded_steps(kind, config, steps, into, write=action == "write")


if __name__ == "__main__":
    main(*sys.argv[1:])
