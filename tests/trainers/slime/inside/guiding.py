"""slime's own rollout manager on a CPU: it generates, logs and converts rollouts, with our hooks or without them.

    python guiding.py DIR

CASES in the environment, JSON, has for each training its variables of the environment; each is a process of its own.
Modules without content stand for SGLang and its router. BREAKS in a case: `raise`, or `full` (no file can grow).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from argparse import Namespace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, os.environ["SLIME"])


class Absent(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class AbsentFinder:
    """Finds what is not installed here and runs engines."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in ("sglang", "sglang_router"):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(AbsentFinder())

from slime.ray.rollout import RolloutManager  # noqa: E402
from slime.rollout.base_types import RolloutFnTrainOutput  # noqa: E402
from slime.utils.misc import load_function  # noqa: E402
from slime.utils.types import Sample  # noqa: E402

FOLDER = Path(sys.argv[1])
OURS = "rolloutdeck.trainers.slime."
ESTIMATORS = ("grpo", "grpo", "reinforce_plus_plus")  # of the rollouts 0, 1, 2
REWARDS = (1.0, 0.0, 0.25, 0.5, 0.0, 1.0, 1.0, 0.75)
reward_guidance: list[dict[str, float]] = []


def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    samples = []
    for index, reward in enumerate(REWARDS):
        prompt, response = f"What is {index // 4} + 1?", f"answer {index}"
        sample = Sample(group_index=index // 4, index=index, prompt=prompt, response=response, reward=reward)
        sample.tokens, sample.response_length = [*prompt.encode(), *response.encode()], len(response)
        sample.loss_mask, sample.rollout_id = [1] * (len(response) - 1) + [0], index
        sample.status = Sample.Status.COMPLETED
        samples.append(sample)
    if OURS in str(args.custom_reward_post_process_path):
        reward_guidance.extend(load_function(OURS + "find_guidance")(args, sample) for sample in samples)
    return RolloutFnTrainOutput(samples=[samples[:4], samples[4:]], metrics={})


def make_manager(hooked: bool) -> Any:
    args = Namespace(
        custom_rollout_log_function_path=OURS + "log_rollout" if hooked else None,
        custom_reward_post_process_path=OURS + "guide_rewards" if hooked else None,
        rolloutdeck_rollout_function_path="__main__.generate",
        advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=True, kl_coef=0.0,
        n_samples_per_prompt=4, rollout_batch_size=2, reward_key=None, hf_checkpoint="tiny",
        save_debug_rollout_data=None, load_debug_rollout_data=None, debug_rollout_only=False, ci_test=False,
        log_reward_category=None, rollout_num_gpus=1, use_wandb=False, use_tensorboard=False,
        wandb_always_use_train_step=False, log_passrate=False,
    )  # fmt: skip
    manager = object.__new__(RolloutManager.__ray_metadata__.modified_class)
    manager.args, manager.data_source, manager._health_monitors = args, None, []
    manager.generate_rollout = load_function(OURS + "generate_rollout") if hooked else generate
    path = args.custom_reward_post_process_path
    manager.custom_reward_post_process_func = load_function(path) if path else None
    manager.custom_convert_samples_to_train_data_func = None
    manager._split_train_data_by_dp = lambda data: data  # the rest goes to the processes that train
    return manager


def main(case: str, hooked: bool) -> None:
    manager, trained = make_manager(hooked), []
    if os.environ.get("GUIDED"):
        from rolloutdeck.trainers.slime.plugin.session import get_slime_session

        assert get_slime_session(manager.args).run.guidance().wait(60)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if os.environ.get("BREAKS") == "raise":
        from rolloutdeck.trainers.slime.plugin import guidance, record

        del guidance.count_tokens, record.freeze_sample
    if os.environ.get("BREAKS") == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    for rollout, manager.args.advantage_estimator in enumerate(ESTIMATORS):
        trained.append(manager.generate(rollout))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (FOLDER / f"{case}.json").write_text(json.dumps({"trained": trained, "told": reward_guidance}))


for case, environ in json.loads(os.environ["CASES"]).items():
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, case
        continue
    os.environ.update(environ)
    main(case, hooked=case != "plain")
    if not os.environ.get("GUIDED"):
        os._exit(0)  # nothing is waited for
    break
