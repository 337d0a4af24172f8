"""Real `OneStepOffRayTrainer.fit()` of verl, two steps with validation before and after. Its tensors go to argv[1].

Each batch is generated while the one before is trained on. argv[2] is a mood: `crash` ends in the first update.
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from omegaconf import OmegaConf
from stand_ins import TOKENIZER, Model, config, log_probs, prompts
from verl import DataProto
from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer

into, mood, overrides = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
seen = []


class Answered(DataProto):
    """What verl's agent loop manager returns: validation takes it as it is, the training loop awaits it."""

    def __await__(self):
        yield from ()
        return self


class Loops:
    """Stands in for the agent loop manager."""

    def __init__(self):
        self.model = Model()

    def generate_sequences(self, batch):
        found = self.model.generate_sequences(batch)
        return Answered(found.batch, found.non_tensor_batch, found.meta_info)


class Trainer(OneStepOffRayTrainer):
    """Without workers: only what needs a GPU is another."""

    def __init__(self, told):
        self.config, self.tokenizer, self.total_training_steps = told, TOKENIZER, 2
        self.use_rm = self.use_critic = self.use_reference_policy = self.is_last_step = False
        self.async_rollout_manager, self.epoch, self.metrics, self.timing_raw = Loops(), 0, {}, {}
        self.checkpoint_manager = SimpleNamespace(update_weights=lambda *_: None, sleep_replicas=lambda: None)
        self.actor_rollout_wg, self.train_dataset = SimpleNamespace(), SimpleNamespace()
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.train_dataloader = [prompts(first, 2, "train") for first in (0, 2, 4)]
        self.val_dataloader = [prompts(10, 2, "test"), prompts(12, 1, "test")]
        self._init_dump_executor()

    def _load_checkpoint(self):
        return 0

    def _start_profiling(self, *_):
        pass

    def _stop_profiling(self, *_, **__):
        pass

    def _compute_old_log_prob(self, batch):
        found = log_probs(batch.batch["responses"])
        return DataProto.from_single_dict({"old_log_probs": found, "entropys": torch.ones_like(found)}), 0.0

    def _update_actor(self, batch):
        if mood == "crash":
            raise RuntimeError("CUDA error")
        names = ("responses", "response_mask", "old_log_probs", "advantages")
        rows = {name: batch.batch[name].tolist() for name in names}
        seen.append({"step": self.global_steps, **rows, "uid": batch.non_tensor_batch["uid"].tolist()})
        return DataProto.from_single_dict({}, meta_info={"metrics": {"actor/pg_loss": [0.5]}})


folders = {"validation_data_dir": str(into / "val"), "rollout_data_dir": str(into / "rollout")}
try:
    trainer = Trainer(OmegaConf.merge(config(**folders), OmegaConf.from_dotlist(overrides)))
    asyncio.run(trainer.fit())
    trainer._shutdown_dump_executor()
finally:
    (into / "seen.json").write_text(json.dumps(seen))
