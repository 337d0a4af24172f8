"""slime's own code of a rollout manager, without Ray and SGLang: two rollouts and an eval. Arguments: the folder, and
what goes wrong: "", `raise`, or `without` our functions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, os.environ["SLIME"])

from slime.observability.rollout_data_utils import save_debug_rollout_data
from slime.observability.rollout_metrics import log_eval_rollout_data, log_rollout_data
from slime.rollout.sample_hooks import apply_rollout_sample_hooks, set_current_rollout_id
from slime.utils.misc import load_function
from slime.utils.types import Sample

FOLDER, WRONG = Path(sys.argv[1]), sys.argv[2]
OURS = "rolloutdeck.trainers.slime."
ARGS = SimpleNamespace(
    custom_rollout_log_function_path=OURS + "log_rollout",
    custom_eval_rollout_log_function_path=OURS + "log_eval",
    rollout_all_samples_process_path=OURS + "all_samples",
    rollout_sample_hook_path=[OURS + "sample_hook"],
    save_debug_rollout_data=str(FOLDER / "dump" / "{rollout_id}.pt"),
    load_debug_rollout_data=None,
    advantage_estimator="grpo",
    reward_key="accuracy",
    eval_reward_key=None,
    log_reward_category=None,
    rollout_num_gpus=1,
    use_wandb=False,
    use_tensorboard=False,
    wandb_always_use_train_step=False,
    wandb_key="a secret",
    log_passrate=False,
    rollout_batch_size=2,
    n_samples_per_prompt=2,
    hf_checkpoint="tiny",
)


def sample(index: int, rollout: int) -> Sample:
    prompt = f"What is {index} + {rollout}?"
    tokens = list(prompt.encode()) + [index % 256, 7, 9]
    return Sample(
        group_index=index // 2,
        index=index,
        prompt=prompt,
        tokens=tokens,
        response=f" {index + rollout} of rollout {rollout}",
        response_length=3,
        label=str(index + rollout),
        reward={"accuracy": float(index % 2), "format": 0.5},
        loss_mask=[1, 1, 0],
        rollout_log_probs=[-0.5, -0.25, -0.125],
        weight_versions=[str(rollout)],
        status=Sample.Status.TRUNCATED if index % 4 == 3 else Sample.Status.COMPLETED,
        metadata={"source_name": "sums", "level": index},
    )


def generate_groups(rollout: int) -> list[list[Sample]]:
    """Three groups; slime's loop hands each sample to its hook, and the hooks of the end of a rollout the rest."""
    groups = [[sample(6 * rollout + 2 * group + item, rollout) for item in range(2)] for group in range(3)]
    groups[0][0].rollout_id = groups[0][1].rollout_id = 100 + rollout  # one execution, cut in two
    for item in [item for group in groups for item in group]:
        unscored = Sample(**{**item.__dict__, "reward": None})
        asyncio.run(apply_rollout_sample_hooks(ARGS, unscored, evaluation=False))
    if ARGS.rollout_all_samples_process_path:
        load_function(ARGS.rollout_all_samples_process_path)(ARGS, groups, lambda count: [])
    return groups[:2]


def flatten_groups(groups: list[list[Sample]]) -> list[Sample]:
    return [item for group in groups for item in group]


def main() -> None:
    created: dict[int, Any] = {}
    for rollout in range(2):
        set_current_rollout_id(rollout)
        data = flatten_groups(generate_groups(rollout))
        save_debug_rollout_data(ARGS.save_debug_rollout_data, data, rollout_id=rollout, evaluation=False)
        log_rollout_data(rollout, ARGS, data, {"rollout/dynamic_filter/drop_zero_std": 1}, 2.0)
        created[rollout] = [item.to_dict() for item in data]
        for item in data:  # as slime goes on with them
            item.loss_mask = [0] * item.response_length
    scored = [Sample(**{**sample(40 + item, 1).__dict__, "reward": {"accuracy": float(item)}}) for item in range(2)]
    info = {"rewards": [0.0, 1.0], "truncated": [False, True], "samples": scored}
    log_eval_rollout_data(1, ARGS, {"aime": info, "gsm8k": info}, {"eval/extra": 3.0})
    (FOLDER / "made.json").write_text(json.dumps(created))


def break_hooks() -> None:
    from rolloutdeck.trainers.slime.plugin import record

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a mistake of ours")

    record.flatten_samples = record.get_slime_session = fail


def remove_hooks() -> None:
    for name, value in vars(ARGS).items():
        if OURS in str(value):
            setattr(ARGS, name, None)


if WRONG == "raise":
    break_hooks()
if WRONG == "without":
    remove_hooks()
main()
