"""NeMo-RL's own `grpo_train` on a CPU, with our hooks or without them: three steps of the same two prompts.

    python guiding.py DIR

CASES in the environment, JSON, has for each training its variables of the environment; each is a process of its own.
The policy, its generation and what loads data stand in for GPUs; the loop, the masks, the estimator, the loss factors
and the logger are NeMo-RL's. ESTIMATOR in a case is one of NeMo-RL's; BREAKS: `raise`, or `full` (no file can grow).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

OPTIONAL = ("decord", "mlflow", "nemo_gym", "pynvml", "scipy", "soundfile", "swanlab", "vllm", "wandb")


class Absent(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class AbsentFinder:
    """Finds engines, trackers and readers of media that are not installed here."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in OPTIONAL:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(AbsentFinder())

import torch  # noqa: E402
from nemo_rl.algorithms import grpo  # noqa: E402
from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig  # noqa: E402
from nemo_rl.algorithms.loss import ClippedPGLossConfig  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402
from nemo_rl.utils.logger import Logger  # noqa: E402

from rolloutdeck.trainers import nemo_rl  # noqa: E402

FOLDER = Path(sys.argv[1])
PROMPTS, ANSWERS, STEPS = 2, 4, 3
REWARDS = (1.0, 0.0, 0.25, 0.5, 0.0, 1.0, 1.0, 0.75)
trained: list[dict[str, Any]] = []


def encode(text: str) -> torch.Tensor:
    return torch.tensor(list(text.encode()))


def load_prompts() -> BatchedDataDict:
    texts = [f"What is {number} + 1?" for number in range(PROMPTS)]
    return BatchedDataDict(
        {
            "message_log": [[{"role": "user", "content": text, "token_ids": encode(text)}] for text in texts],
            "task_name": ["math"] * PROMPTS,
            "extra_env_info": [{}] * PROMPTS,
            "loss_multiplier": torch.ones(PROMPTS),
            "idx": torch.arange(PROMPTS),
            "length": torch.tensor([len(text) for text in texts]),
        }
    )


def generate(input_batch: Any, **_: Any) -> tuple[Any, dict[str, float]]:
    for index, log in enumerate(input_batch["message_log"]):
        ids = encode(text := f"answer {index}")
        message = {"role": "assistant", "content": text, "token_ids": ids}
        log.append({**message, "generation_logprobs": -torch.arange(1.0, len(ids) + 1) / 10})
    input_batch["total_reward"] = torch.tensor(REWARDS)
    input_batch["truncated"] = torch.zeros(len(REWARDS), dtype=torch.bool)
    return input_batch, {"mean_gen_tokens_per_sample": 8.0}


def train_policy(data: Any, *_: Any, **__: Any) -> dict[str, Any]:
    trained.append({name: value.tolist() for name, value in sorted(data.items())})
    metrics = {"loss": [0.5], "global_valid_toks": [8], "token_mult_prob_error": [1.0], "gen_kl_error": [0.0]}
    return {"loss": torch.tensor(0.5), "grad_norm": torch.tensor(1.0), "all_mb_metrics": metrics}


def get_logprobs(data: Any, **_: Any) -> dict[str, Any]:
    values = -(data["input_ids"] % 7).float() / 10
    return {"logprobs": values, "reference_logprobs": values}


def build_config() -> Any:
    construct = grpo.GRPOConfig.model_construct
    return grpo.MasterConfig.model_construct(
        grpo=construct(
            max_num_steps=STEPS, max_num_epochs=STEPS, num_prompts_per_step=PROMPTS, num_generations_per_prompt=ANSWERS,
            max_rollout_turns=1, val_period=0, val_start_at=-1, val_at_start=False, val_at_end=False, seed=1,
            stop_at_validation_metric=None, stop_at_validation_threshold=None, use_leave_one_out_baseline=False,
            overlong_filtering=False, use_dynamic_sampling=False, seq_logprob_error_threshold=None,
            reward_scaling=grpo.RewardScalingConfig.model_construct(enabled=False),
            reward_shaping=grpo.RewardShapingConfig.model_construct(enabled=False),
            async_grpo=grpo.AsyncGRPOConfig.model_construct(enabled=False),
            adv_estimator=AdvEstimatorConfig.model_construct(
                name=os.environ.get("ESTIMATOR", "grpo"), use_leave_one_out_baseline=False, normalize_rewards=True,
                minus_baseline=True,
            ),
        ),
        policy={
            "precision": "bfloat16", "train_global_batch_size": 8, "train_micro_batch_size": 8,
            "max_total_sequence_length": 64, "make_sequence_length_divisible_by": 1,
            "generation": {"backend": "vllm", "colocated": {"enabled": True}, "vllm_cfg": {"async_engine": True}},
        },
        loss_fn=ClippedPGLossConfig(),
        checkpointing={"enabled": False, "checkpoint_must_save_by": None, "save_period": 10},
        cluster={"num_nodes": 1, "gpus_per_node": 1}, env={}, data={"use_multiple_dataloader": False},
        logger={"num_val_samples_to_print": 0},
    )  # fmt: skip


class Prompts:
    def __iter__(self) -> Any:
        return iter([load_prompts()])

    def __len__(self) -> int:
        return 1


def build_logger(folder: Path) -> Logger:
    off = dict.fromkeys(("wandb_enabled", "swanlab_enabled", "mlflow_enabled", "tensorboard_enabled"), False)
    return Logger({"log_dir": str(folder), "monitor_gpus": False, **off})


def main(case: str, hooked: bool) -> None:
    logger, config = build_logger(FOLDER / case), build_config()
    if hooked:
        nemo_rl.record(logger, {"logger": {"wandb": {"project": "math", "name": case}}})
    if os.environ.get("GUIDED"):
        from rolloutdeck.trainers.nemo_rl.guidance import NemoGuidance

        assert NemoGuidance.current and NemoGuidance.current.run.guidance().wait(60)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if os.environ.get("BREAKS") == "raise":
        from rolloutdeck.trainers.nemo_rl import guidance

        del guidance.match_rows
    if os.environ.get("BREAKS") == "full":
        logger.log_batched_dict_as_jsonl = lambda *_: None  # NeMo-RL's own file could not grow either
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    policy, generation = MagicMock(), MagicMock(spec=["prepare_for_generation", "finish_generation"])
    policy.train, policy.get_logprobs, policy.get_reference_policy_logprobs = train_policy, get_logprobs, get_logprobs
    generation.clear_logger_metrics = generation.get_logger_metrics = dict
    grpo.run_async_multi_turn_rollout = grpo.run_multi_turn_rollout = generate
    grpo.refit_policy_generation = lambda *_, **__: {}
    grpo.MemoryTracker = MagicMock  # asks Ray, which does not run here
    grpo.print_performance_metrics = lambda *_, **__: {}
    tokenizer = MagicMock(pad_token_id=0)
    arguments = [policy, generation, Prompts(), None, tokenizer, MagicMock(), {}, None, logger, MagicMock()]
    grpo.grpo_train(*arguments, grpo._initial_grpo_save_state(), config)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (FOLDER / f"{case}.json").write_text(json.dumps(trained))
    logger.finish()


for case, environ in json.loads(os.environ["CASES"]).items():
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, case
        continue
    os.environ.update(environ)
    main(case, hooked=not case.startswith("plain"))
    if not os.environ.get("GUIDED"):
        os._exit(0)  # nothing is waited for
    break
