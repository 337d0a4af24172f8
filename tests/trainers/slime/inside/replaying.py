"""Three rollouts through `generate_rollout`, as slime's manager takes them. Arguments: the folder, and a word that its
answers are made of."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, os.environ["SLIME"])

from slime.observability.rollout_data_utils import save_debug_rollout_data
from slime.observability.rollout_metrics import log_rollout_data
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput, call_rollout_fn
from slime.utils.misc import load_function
from slime.utils.types import Sample

FOLDER, WORD = Path(sys.argv[1]), sys.argv[2]
OURS = "rolloutdeck.trainers.slime."
ARGS = SimpleNamespace(
    rollout_function_path=OURS + "generate_rollout",
    rolloutdeck_rollout_function_path="__main__.generate",
    custom_rollout_log_function_path=OURS + "log_rollout",
    save_debug_rollout_data=str(FOLDER / "dump" / "{rollout_id}.pt"),
    load_debug_rollout_data=None,
    advantage_estimator="grpo",
    reward_key=None,
    log_reward_category=None,
    rollout_num_gpus=1,
    use_wandb=False,
    use_tensorboard=False,
    wandb_always_use_train_step=False,
    rollout_batch_size=2,
    n_samples_per_prompt=int(os.environ.get("ANSWERS", "2")),
    rollout_max_response_len=8,
    hf_checkpoint="tiny",
    rolloutdeck_send_dumps=bool(os.environ.get("SEND")),
)


class Prompts:
    """A data source: groups of samples without answers, counted on."""

    count = 0

    def get_samples(self, groups: int) -> list[list[Sample]]:
        created = []
        for _ in range(groups):
            prompt, each = f"prompt {self.count}", ARGS.n_samples_per_prompt
            created.append(
                [Sample(group_index=self.count, index=self.count * each + k, prompt=prompt) for k in range(each)]
            )
            self.count += 1
        return created


def generate(args: Any, rollout_id: int, data_source: Prompts, evaluation: bool = False) -> Any:
    if evaluation:
        return RolloutFnEvalOutput(data={})
    groups = data_source.get_samples(args.rollout_batch_size)
    for sample in [item for group in groups for item in group]:
        sample.response = f"{WORD} {sample.index} in {rollout_id}"
        sample.tokens = [*sample.prompt.encode(), *sample.response.encode()]
        sample.response_length, sample.reward = len(sample.response), float(sample.index % 2)
        sample.rollout_log_probs = [-1 / (k + 1) for k in range(sample.response_length)]
        sample.status = Sample.Status.COMPLETED
        sample.extra = {"word": WORD}
    return RolloutFnTrainOutput(samples=groups, metrics={})


def main() -> None:
    source, function, created = Prompts(), load_function(ARGS.rollout_function_path), {}
    call_rollout_fn(function, ARGS, 0, source, evaluation=True)
    for rollout in range(3):
        result = call_rollout_fn(function, ARGS, rollout, source, evaluation=False).samples
        data = [item for group in result for item in (group if isinstance(group, list) else [group])]
        save_debug_rollout_data(ARGS.save_debug_rollout_data, data, rollout_id=rollout, evaluation=False)
        log_rollout_data(rollout, ARGS, data, {}, 1.0)
        created[rollout] = [item.to_dict() for item in data]
    (FOLDER / "made.json").write_text(json.dumps(created))


main()
