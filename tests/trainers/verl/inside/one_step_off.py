"""Real `OneStepOffRayTrainer.fit()` of verl, two steps with validation before and after. Its tensors go to argv[1].

Each batch is generated while the one before is trained on. argv[2] is a mood: `crash` ends in the first update, `actor`
too, in an actor of Ray, whose process lives on.
"""

import asyncio
import json
import sys
from pathlib import Path

from omegaconf import OmegaConf
from stubs import Model, TrainerWithoutWorkers, build_config, build_prompts, limit_disk
from verl import DataProto
from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer

into, mood, overrides = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]


class AwaitableBatch(DataProto):
    """What verl's agent loop manager returns: validation takes it as it is, the training loop awaits it."""

    def __await__(self):
        yield from ()
        return self


class AgentLoopManager:
    """Stands in for the agent loop manager."""

    def __init__(self):
        self.model = Model()

    def generate_sequences(self, batch):
        result = self.model.generate_sequences(batch)
        return AwaitableBatch(result.batch, result.non_tensor_batch, result.meta_info)


class Trainer(TrainerWithoutWorkers, OneStepOffRayTrainer):
    def __init__(self, settings):
        self.is_last_step, self.epoch, self.metrics, self.timing_raw = False, 0, {}, {}
        self.crash = int(mood in ("crash", "actor"))
        self.set_up(settings, AgentLoopManager(), [build_prompts(first, 2, "train") for first in (0, 2, 4)])


folders = {"validation_data_dir": str(into / "val"), "rollout_data_dir": str(into / "rollout")}
trainer = Trainer(OmegaConf.merge(build_config(**folders), OmegaConf.from_dotlist(overrides)))
try:
    with limit_disk():
        asyncio.run(trainer.fit())
        trainer._shutdown_dump_executor()
except RuntimeError as error:
    if mood != "actor":
        raise
    print(json.dumps(str(error)))
finally:
    (into / "seen.json").write_text(json.dumps(trainer.seen))
