"""Real `RayPPOTrainer.fit()` of verl, two steps with validation before and after. Its tensors go to argv[1].

argv[2] is a mood, and what follows overrides its configuration: `skip.rollout.enable=true`. In the mood `other` the
model says something else, `shifted` has other prompts, `silent` an aborted answer, `odd` a strange column
at step 2, `crash` ends in the first update.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from omegaconf import OmegaConf
from stand_ins import TOKENIZER, Model, config, log_probs, prompts
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

into = Path(sys.argv[1])
mood, overrides = (sys.argv[2], sys.argv[3:]) if len(sys.argv) > 2 else ("", [])
seen = []


class Trainer(RayPPOTrainer):
    """Without workers: only what needs a GPU is another."""

    def __init__(self, told):
        self.config, self.tokenizer, self.total_training_steps = told, TOKENIZER, 2
        self.use_rm = self.use_critic = self.use_reference_policy = False
        self.async_rollout_manager = Model()
        self.async_rollout_manager.odd = mood == "odd"
        self.async_rollout_manager.mood = {"silent": "silent", "other": "plus"}.get(mood, "")
        nothing = SimpleNamespace(update_weights=lambda *_: None, sleep_replicas=lambda: None)
        self.checkpoint_manager, self.actor_rollout_wg, self.train_dataset = (
            nothing,
            SimpleNamespace(),
            SimpleNamespace(),
        )
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        first = 6 if mood == "shifted" else 0
        self.train_dataloader = [prompts(first, 2, "train"), prompts(first + 2, 2, "train")]
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
        rows = [
            {
                "response": self.tokenizer.decode(batch.batch["responses"][place], skip_special_tokens=True),
                "logprobs": batch.batch["old_log_probs"][place].tolist(),
                "advantages": batch.batch["advantages"][place].tolist(),
                "mask": batch.batch["response_mask"][place].tolist(),
                "ids": batch.batch["responses"][place].tolist(),
                "uid": batch.non_tensor_batch["uid"][place],
            }
            for place in range(len(batch))
        ]
        seen.append({"step": self.global_steps, "rows": rows})
        return DataProto.from_single_dict({}, meta_info={"metrics": {"actor/pg_loss": [0.5]}})


folders = {"validation_data_dir": str(into / "val"), "rollout_data_dir": str(into / "rollout")}
if mood == "unnamed":
    folders["logger"] = ["console"]
try:
    Trainer(OmegaConf.merge(config(**folders), OmegaConf.from_dotlist(overrides))).fit()
finally:
    (into / "seen.json").write_text(json.dumps(seen))
