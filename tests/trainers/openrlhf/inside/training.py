"""OpenRLHF's own generator, experience maker and trainer in Ray actors on a CPU, started as `python -m` does it.

    python training.py DIR

Stand-ins: vLLM and DeepSpeed (not installed), engines that answer with known tokens, models whose log-probs are 0, and
the update of the weights.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import ray

from rolloutdeck.trainers.openrlhf import __main__ as start

FOLDER = Path(sys.argv[1])
STAND_INS = (
    "vllm", "vllm.inputs", "vllm.utils", "deepspeed", "aiohttp", "optimum", "openrlhf.models.actor",
    "openrlhf.models.model", "openrlhf.models.ring_attn_utils", "openrlhf.utils.deepspeed", "openrlhf.trainer.ray",
    "openrlhf.trainer.ray.vllm_engine",
)  # fmt: skip


def install_stand_ins() -> None:
    for name in STAND_INS:
        if name not in sys.modules:
            module = ModuleType(name)
            # Other packages look for the spec.
            spec = ModuleSpec(name, None)
            vars(module).update({"__path__": [], "__spec__": spec, "__getattr__": lambda attribute: MagicMock()})
            sys.modules[name] = module
    sys.modules["vllm"].SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    sys.modules["openrlhf.trainer.ray.vllm_engine"].batch_vllm_engine_call = lambda *_, **__: None  # type: ignore[attr-defined]
    launcher = ModuleType("openrlhf.trainer.ray.launcher")
    launcher.RayActorGroup = object  # type: ignore[attr-defined]
    sys.modules["openrlhf.trainer.ray.launcher"] = launcher


class Tokenizer:
    pad_token_id = eos_token_id = 0

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        if ids and isinstance(ids[0], list):
            return ["".join(map(chr, filter(None, row))) for row in ids]
        return "".join(map(chr, filter(None, ids)))


def answer(prompt: str, label: str, samples: int) -> list[dict[str, Any]]:
    """What an engine of OpenRLHF returns for a prompt (openrlhf/utils/agent.py)."""
    responses = []
    for number in range(samples):
        text, start = f"{int(label) + number}", len(prompt)
        ids = [*map(ord, prompt + text)]
        responses.append(
            {
                "prompt": prompt, "label": label, "images": None, "mm_train_inputs": None, "observation_tokens": ids,
                "action_ranges": [(start, len(ids))], "rollout_log_probs": [0.0] * start + [-0.5] * len(text),
                "truncated": False, "reward": float(text == label), "scores": float(text == label),
                "extra_logs": {"format": 1.0},
            }
        )  # fmt: skip
    return responses


@ray.remote
class Engine:
    def get_num_unfinished_requests(self) -> int:
        return 0

    def generate_responses(self, prompt: str, label: str, num_samples: int, **options: Any) -> list[dict[str, Any]]:
        return answer(prompt, label, num_samples)


class Models:
    """A group of model actors: log-probs are 0."""

    def async_run_method_batch(self, method_name: str, action_mask: Any = None, **_: Any) -> list[Any]:
        import torch

        return [ray.put([torch.zeros(mask.shape) for mask in action_mask])] if method_name == "forward" else []

    def async_run_method(self, method_name: str, **_: Any) -> list[Any]:
        return [ray.put({"policy_loss": 0.25})]


def build_arguments() -> Any:
    from openrlhf.utils.config import hierarchize

    flat = {
        "algo.kl.target": None, "algo.kl.init_coef": 0.01, "algo.kl.use_loss": False, "algo.kl.estimator": "k1",
        "algo.advantage.estimator": "reinforce", "algo.advantage.gamma": 1.0, "algo.advantage.lambd": 1.0,
        "algo.advantage.is_correction_enable": True,
        "algo.advantage.no_std_norm": True, "reward.overlong_buffer_len": None,
        "reward.stop_properly_penalty_coef": None, "reward.overlong_penalty_factor": None, "data.max_len": 64,
        "algo.dynamic_filtering_enable": False, "logger.wandb.key": None, "logger.tensorboard_dir": None,
        "logger.wandb.project": "math", "logger.wandb.run_name": "ppo", "logger.logging_steps": 1,
        "ckpt.best_metric_key": "", "ckpt.path": str(FOLDER / "checkpoints"), "ckpt.save_steps": float("inf"),
        "rollout.batch_size": 2, "rollout.n_samples_per_prompt": 2, "rollout.micro_batch_size": 2,
        "rollout.vllm_generate_batch_size": 2, "vllm.enable_sleep": False, "train.dynamic_batch_enable": False,
        "train.colocate_all": False, "train.colocate_actor_ref": False,
        "train.colocate_critic_reward": False, "ds.enable_sleep": False, "ds.ring_attn_size": 1,
        "ds.tensor_parallel_size": 1, "critic.freezing_steps": -1, "reward.clip_range": (-10, 10),
        "actor.num_nodes": 1, "actor.num_gpus_per_node": 1,
    }  # fmt: skip
    return hierarchize(SimpleNamespace(**flat))


@ray.remote
def train() -> str:
    """The part of OpenRLHF's `PPOTrainer.fit` and `evaluate` that has samples."""
    install_stand_ins()
    from openrlhf.trainer.ppo_trainer import BasePPOTrainer
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    class Trainer(BasePPOTrainer):
        def fit(self, global_step: int = 0) -> None:
            prompts = [(None, [f"{number}+1="], [str(number + 1)], [None]) for number in range(4)]
            generator = SamplesGenerator(self.strategy, prompts, prompts[:1], self.tokenizer, self.vllm_engines)
            for _ in range(2):
                rollout_samples, _, _, _ = generator.generate_samples(max_len=64)
                status, global_step = self.train_step(rollout_samples, global_step)
                self.save_logs_and_checkpoints(global_step, status, {})
            self.evaluate(generator, global_step)

        def evaluate(self, generator: Any, global_step: int) -> None:
            samples = generator.generate_eval_samples(max_len=64, n_samples_per_prompt=1)
            self.best_eval_metric_key = "none"
            self.save_best_checkpoint({"eval_sums_pass1": float(samples[0].rewards[0])}, global_step)

        def broadcast_to_vllm(self) -> None:
            pass

    strategy, models = SimpleNamespace(args=build_arguments()), Models()
    trainer = Trainer(strategy, models, None, None, None, [Engine.remote()], Tokenizer())
    trainer.fit()
    return "trained"


def run_script(name: str, **_: Any) -> None:
    assert name == start.SCRIPT
    print(ray.get(train.remote()))


if __name__ == "__main__":
    start.runpy.run_module = run_script  # the script of OpenRLHF needs GPUs
    start.main()
    ray.shutdown()
