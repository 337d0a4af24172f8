"""SkyRL's own experiment, generator, environment, evaluation, tracker and training loop on a CPU, with `record`.

    python training.py DIR [broken] [steps]
    python training.py DIR start            SkyRL's `main_base`, until it looks for data that are not there

Stand-ins: an engine that answers with known tokens, and the trainer's methods that need models (forward passes, the
update, the transfer of weights). `broken`: the generator returns rewards that are no numbers. `steps`: step-wise
trajectories.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.trainer import RayPPOTrainer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from rolloutdeck.trainers import skyrl

FOLDER = Path(sys.argv[1])
MESSAGES = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
TEMPLATE = MESSAGES + "{% if add_generation_prompt %}assistant:{% endif %}"


def save_tokenizer(folder: Path) -> None:
    """Every printable character is a token."""
    letters = {chr(code): code - 30 for code in range(32, 127)} | {"\n": 100, "<eos>": 101, "<unk>": 102}
    model = Tokenizer(WordLevel(letters, unk_token="<unk>"))
    model.pre_tokenizer = Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


class Engine:
    """Answers `#### N` for each prompt, in turn the sum that the prompt asks for and another number."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.calls = tokenizer, 0

    async def generate(self, engine_input: Any, model: str = "") -> dict[str, Any]:
        ids = engine_input["prompt_token_ids"][0]
        first, second = map(int, re.findall(r"\d+", self.tokenizer.decode(ids).replace(" ", ""))[-2:])
        text = f"#### {first + second + self.calls % 2}"
        self.calls += 1
        answer = self.tokenizer.encode(text, add_special_tokens=False)
        answer.append(self.tokenizer.eos_token_id)
        logprobs = [[-0.5] * len(answer)]
        return {
            "responses": [text], "response_ids": [answer], "stop_reasons": ["stop"], "response_logprobs": logprobs,
            "rollout_expert_indices": None,
        }  # fmt: skip

    async def do_nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    wake_up = sleep = finish_session = do_nothing


class Trainer(RayPPOTrainer):
    def build_models(self, *args: Any) -> None:
        self.dispatch = SimpleNamespace(
            get_lcm_dp_size=lambda: 1,
            save_weights_for_sampler=self.inference_engine_client.do_nothing,
            finalize_pending_saves=lambda model: None,
        )

    def init_weight_sync_state(self) -> None:
        pass

    def fwd_logprobs_values_reward(self, training_input: Any) -> Any:
        return training_input

    compute_advantages_and_returns = fwd_logprobs_values_reward

    def train_critic_and_policy(self, data: Any) -> dict[str, float]:
        return {"policy_loss": 0.25}


class Experiment(BasePPOExp):
    def get_train_dataset(self) -> PromptDataset:
        """SkyRL's own starts eight processes."""
        return PromptDataset(self.cfg.data.train_data, self.tokenizer, self.cfg.trainer.max_prompt_length, 1)

    def get_eval_dataset(self) -> PromptDataset:
        return PromptDataset(self.cfg.data.val_data, self.tokenizer, self.cfg.trainer.max_prompt_length, 1)

    def get_inference_client(self) -> Any:
        return Engine(self.tokenizer)

    def get_generator(self, *args: Any, **kwargs: Any) -> Any:
        generator = super().get_generator(*args, **kwargs)
        if "broken" in sys.argv:
            generate = generator.generate

            async def generate_with_bad_values(input_batch: Any) -> Any:
                output = await generate(input_batch)
                return {**output, "prompt_token_ids": output["prompt_token_ids"][:1]}

            generator.generate = generate_with_bad_values
        return generator

    def get_trainer(self, **options: Any) -> Any:
        return Trainer(**options)

    def _setup_trainer(self) -> Any:
        """SkyRL's own also imports the workers of models."""
        client = self.get_inference_client()
        trainer = self.get_trainer(
            cfg=self.cfg,
            tracker=self.get_tracker(),
            tokenizer=self.tokenizer,
            train_dataset=self.train_dataset,
            eval_dataset=self.eval_dataset,
            inference_engine_client=client,
            generator=self.get_generator(self.cfg, self.tokenizer, client),
            colocate_pg=self.colocate_pg,
        )
        trainer.build_models()
        return trainer


def write_prompts(path: Path, count: int) -> str:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{number} + 1"}],
            "env_class": "gsm8k",
            "reward_spec": {"method": "rule", "ground_truth": str(number + 1)},
            "data_source": "sums",
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def start() -> None:
    """SkyRL's own start script hands over to ours, which starts SkyRL's experiment in a process of Ray."""
    from skyrl.train.entrypoints import main_base

    save_tokenizer(FOLDER / "model")
    words = [f"trainer.policy.model.path={FOLDER / 'model'}", "trainer.placement.colocate_all=false"]
    words += ["trainer.logger=console", 'data.train_data=["/no/such.jsonl"]', 'data.val_data=["/no/such.jsonl"]']
    sys.argv[1:] = ["trainer.override_entrypoint=rolloutdeck.trainers.skyrl", *words]
    main_base.main()


if __name__ == "__main__":
    if "start" in sys.argv:
        start()
    ray.init(num_cpus=1, include_dashboard=False)
    save_tokenizer(FOLDER / "model")
    options = {
        "trainer.policy.model.path": FOLDER / "model",
        "trainer.project_name": "math",
        "trainer.run_name": "sky",
        "trainer.ckpt_path": FOLDER / "checkpoints",
        "trainer.export_path": FOLDER / "exports",
        "trainer.logger": "console",
        "trainer.placement.colocate_all": "false",
        "trainer.epochs": 1,
        "trainer.train_batch_size": 2,
        "trainer.policy_mini_batch_size": 2,
        "trainer.eval_batch_size": 2,
        "trainer.eval_interval": 2,
        "trainer.eval_before_train": "false",
        "trainer.ckpt_interval": 0,
        "trainer.resume_mode": "none",
        "trainer.print_example_interval": 0,
        "data.dataloader.num_workers": 0,
        "data.dataloader.persistent_workers": "false",
        "generator.n_samples_per_prompt": 2,
        "generator.sampling_params.logprobs": 1,
        "generator.batched": "false",
        "generator.inference_engine.enable_ray_prometheus_stats": "false",
        "trainer.enable_ray_gpu_monitor": "false",
        "generator.step_wise_trajectories": str("steps" in sys.argv).lower(),
        "environment.env_class": "gsm8k",
    }
    words = [f"{name}={value}" for name, value in options.items()]
    words += [f'data.train_data=["{write_prompts(FOLDER / "train.jsonl", 4)}"]']
    words += [f'data.val_data=["{write_prompts(FOLDER / "val.jsonl", 2)}"]']
    config = SkyRLTrainConfig.from_cli_overrides(words)
    skyrl.record(Experiment(config)).run()
    print("trained")
