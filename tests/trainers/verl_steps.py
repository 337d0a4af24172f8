"""Run by the trainers' environment: real verl writes steps for its rollout skip, or loads those that lie somewhere.

    verl_steps.py write|load KIND FOLDER OVERRIDE...

KIND is `rollout` (V0), `async_rollout` (fully async: a step is a prompt) or `rollout_tq` (V1, with a real
TransferQueue). The overrides go through Hydra onto verl's own configuration, which says where the steps lie and which
are meant. `write` generates them and saves what was generated as FOLDER/{step}.pt too, in plain tensors and lists.
`load` must not generate: it compares what verl's SkipManager returns for each step with FOLDER/{step}.pt, value by
value, and prints `step {step} is equal`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from verl.protocol import DataProto
from verl.utils.skip import SkipManager

PAD = 0
ROWS_OF = {"rollout": lambda config: config.data.train_batch_size, "async_rollout": lambda config: 1}


def configured(overrides: list[str]) -> Any:
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    SkipManager.init(config)
    return config


def batch(config: Any, step: int, prompts: int) -> DataProto:
    """A batch as verl's agent loop returns it, with every kind of column that one has."""
    rows = prompts * config.actor_rollout_ref.rollout.n
    wide, long = config.data.max_prompt_length, config.data.max_response_length
    dice = torch.Generator().manual_seed(step)
    prompt, response = (torch.randint(1, 90, (rows, size), generator=dice) for size in (wide, long))
    mask = (torch.arange(long)[None] < torch.randint(1, long, (rows, 1), generator=dice)).long()
    scores = torch.rand((rows, long), generator=dice)
    scores[0, 0] = float("nan")
    tensors = {
        "prompts": prompt,
        "responses": response * mask,
        "response_mask": mask,
        "input_ids": torch.cat([prompt, response * mask], 1),
        "attention_mask": torch.cat([torch.ones_like(prompt), mask], 1),
        "position_ids": torch.arange(wide + long).repeat(rows, 1),
        "rollout_log_probs": -torch.rand((rows, long), generator=dice),
        "rm_scores": scores,
    }
    columns = {
        "__num_turns__": np.full(rows, 2, dtype=np.int32),
        "acc": np.arange(rows) % 2 == 0,
        "score": np.linspace(0, 1, rows),
        "pred": np.array([f"answer {row} \u2028 日本" for row in range(rows)]),
        "raw_prompt": objects([[{"role": "user", "content": f"step {step}, row {row}"}] for row in range(rows)]),
        "turn_scores": objects([[] for _ in range(rows)]),
        "reward_extra_info": objects([{"acc": True, "why": None, "parts": [0.5, row]} for row in range(rows)]),
        "min_global_steps": objects([step] * rows),
    }
    meta: dict[str, Any] = {"reward_extra_keys": ["acc", "score", "pred"]}
    if prompts == 1:
        meta["metrics"] = [{"generate_sequences": 0.5, "tool_calls": 0.0} for _ in range(rows)]
    else:
        meta["timing"] = {"agent_loop/slowest/generate_sequences": np.float64(1.5)}
    if config.trainer.experiment_name == "colocated":
        del tensors["rm_scores"]
        columns |= live(step, rows)
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info=meta)


def live(step: int, rows: int) -> dict[str, np.ndarray]:
    """The columns of the dataset that a batch without streamed rewards carries."""
    return {
        "uid": objects([f"{step}-{row}" for row in range(rows)]),
        "data_source": objects(["gsm8k"] * rows),
        "reward_model": objects([{"style": "rule", "ground_truth": str(step)}] * rows),
        "extra_info": objects([{"index": row, "split": "train"} for row in range(rows)]),
    }


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def seen(data: DataProto) -> dict[str, Any]:
    """The batch as what `torch.load(weights_only=True)` reads, dtypes of the columns included."""
    columns = {name: [str(value.dtype), plain(value.tolist())] for name, value in data.non_tensor_batch.items()}
    tensors = {name: data.batch[name].clone() for name in data.batch.keys()}  # noqa: SIM118
    return {"tensors": tensors, "columns": columns, "meta": plain(data.meta_info)}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def keep(found: dict[str, Any], into: Path, step: int, *, write: bool) -> None:
    if write:
        return torch.save(found, into / f"{step}.pt")
    compare(torch.load(into / f"{step}.pt", weights_only=True), found, f"step {step}")
    print(f"step {step} is equal")


def compare(one: Any, other: Any, where: str) -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), where
        same = torch.equal(*(each.contiguous().view(torch.uint8) for each in (one, other)))  # NaN equals itself
        assert same, where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), f"{where}: {one.keys() ^ other.keys()}"
        for name, value in one.items():
            compare(value, other[name], f"{where}, {name}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for row, pair in enumerate(zip(one, other, strict=True)):
            compare(*pair, f"{where} [{row}]")
    else:
        assert one == other, where


class Generator:
    """Where verl decides between loading and generating: the two methods it puts its decorator on."""

    def __init__(self, config: Any, may: bool) -> None:
        self.config, self.may = config, may

    @SkipManager.annotate(role="rollout")
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        return self.generated(SkipManager.step)

    @SkipManager.annotate(role="async_rollout")
    def generate_sequences_single(self, prompts: DataProto) -> DataProto:
        return self.generated(int(prompts.non_tensor_batch["uid"][0].rsplit("_", 1)[1]))

    def generated(self, step: int) -> DataProto:
        assert self.may, f"step {step} was generated, not replayed"
        role = "rollout" if self.config.skip.rollout.enable else "async_rollout"
        return batch(self.config, step, ROWS_OF[role](self.config))


def padded(kind: str, config: Any, steps: list[int], into: Path, *, write: bool) -> None:
    generator = Generator(config, write)
    for step in steps:
        SkipManager.set_step(step)
        uid = objects([f"uid_sample_0_{step}"])
        prompts = DataProto.from_dict(tensors={"x": torch.zeros(1, 1)}, non_tensors={"uid": uid})
        ask = generator.generate_sequences if kind == "rollout" else generator.generate_sequences_single
        keep(seen(ask(prompts)), into, step, write=write)


def queued(config: Any, steps: list[int], into: Path, *, write: bool) -> None:
    """V1: rows go into a real queue, and its skip role dumps them from there, or puts what was dumped back in."""
    import ray
    import transfer_queue as tq

    ray.init(num_cpus=3, include_dashboard=False, logging_level="error", log_to_driver=False)
    config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
    tq.init(config.transfer_queue)
    role = SkipManager.skip_instances["rollout_tq"]
    try:
        for step in steps:
            (put_in if write else take_out)(tq, role, config, step)
            keep(rows_of(tq, config, step), into, step, write=write)
            tq.kv_clear(partition_id="train", keys=list(tq.kv_list(partition_id="train")["train"]))
    finally:
        tq.close()
        ray.shutdown()


def uids(step: int, config: Any) -> list[str]:
    return [f"{step:08x}-0000-4000-8000-{prompt:012x}" for prompt in range(config.data.train_batch_size)]


def put_in(tq: Any, role: Any, config: Any, step: int) -> None:
    from tensordict import TensorDict
    from tensordict.tensorclass import NonTensorData, NonTensorStack
    from transfer_queue import KVBatchMeta

    n = config.actor_rollout_ref.rollout.n
    keys = [f"{uid}_{session}_0" for uid in uids(step, config) for session in range(n)]
    dice = torch.Generator().manual_seed(step)
    sizes = torch.randint(1, config.data.max_response_length, (len(keys),), generator=dice).tolist()

    def jagged(kind: torch.dtype) -> torch.Tensor:
        drawn = [(torch.rand(size, generator=dice) * 90).to(kind) for size in sizes]
        return torch.nested.as_nested_tensor(drawn, layout=torch.jagged)

    fields = {name: jagged(torch.int64) for name in ("prompts", "responses", "response_mask", "input_ids")}
    fields |= {name: jagged(torch.float32) for name in ("rm_scores", "rollout_log_probs")}
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


def take_out(tq: Any, role: Any, config: Any, step: int) -> None:
    assert role.maybe_load_and_inject(step, uids(step, config)), f"step {step} was generated, not replayed"


def rows_of(tq: Any, config: Any, step: int) -> dict[str, Any]:
    """What the trainer's own read of the queue gives for each row of a step."""
    n = config.actor_rollout_ref.rollout.n
    keys = [f"{uid}_{session}_0" for uid in uids(step, config) for session in range(n)]
    data = tq.kv_batch_get(keys=keys, partition_id="train")
    found: dict[str, Any] = {}
    for name in sorted(data.keys()):
        value = data[name]
        found[name] = list(value.unbind()) if isinstance(value, torch.Tensor) else plain(list(value))
    return found


def main(action: str, kind: str, folder: str, *overrides: str) -> None:
    into = Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    config = configured(list(overrides))
    steps = list(config.skip[kind].steps)
    if kind == "rollout_tq":
        queued(config, steps, into, write=action == "write")
    else:
        padded(kind, config, steps, into, write=action == "write")


if __name__ == "__main__":
    main(*sys.argv[1:])
