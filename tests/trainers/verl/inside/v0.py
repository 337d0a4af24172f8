"""Real `RayPPOTrainer.fit()` of verl, two steps with validation before and after. Its tensors go to argv[1].

argv[2] is a mood, and what follows overrides its configuration: `skip.rollout.enable=true`. In the mood `other` the
model says something else, in `late` too, which has only the second of the two batches, `shifted` has other prompts,
`silent` an aborted answer, `odd` a strange column at step 2; the update of step CRASH fails, in `crash` the first.
"""

import json
import os
import sys
from pathlib import Path

from omegaconf import OmegaConf
from stubs import Model, TrainerWithoutWorkers, build_config, build_prompts, limit_disk, wait_for_rules
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

into = Path(sys.argv[1])
mood, overrides = (sys.argv[2], sys.argv[3:]) if len(sys.argv) > 2 else ("", [])


class Trainer(TrainerWithoutWorkers, RayPPOTrainer):
    def __init__(self, settings):
        model, first = Model(), 6 if mood == "shifted" else 0
        model.odd = mood == "odd"
        model.mood = {"silent": "silent", "other": "plus", "late": "plus"}.get(mood, "")
        self.crash = int(os.environ.get("CRASH", mood == "crash"))
        batches = [build_prompts(first, 2, "train"), build_prompts(first + 2, 2, "train")]
        self.set_up(settings, model, batches[1:] if mood == "late" else batches)


folders = {"validation_data_dir": str(into / "val"), "rollout_data_dir": str(into / "rollout")}
trainer = Trainer(OmegaConf.merge(build_config(**folders), OmegaConf.from_dotlist(overrides)))
wait_for_rules(trainer.config)
try:
    with limit_disk():
        trainer.fit()
finally:
    (into / "seen.json").write_text(json.dumps(trainer.seen))
