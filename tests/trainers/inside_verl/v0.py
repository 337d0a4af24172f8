"""Real `RayPPOTrainer.fit()` of verl, two steps with validation before and after. Its tensors go to argv[1].

argv[2] is a mood, and what follows overrides its configuration: `skip.rollout.enable=true`. In the mood `other` the
model says something else, `shifted` has other prompts, `silent` an aborted answer, `odd` a strange column
at step 2, `unnamed` has a logger that does not name us, `crash` ends in the first update, in `raise` our hooks fail,
and in `full` no file can grow.
"""

import json
import resource
import sys
from pathlib import Path

from omegaconf import OmegaConf
from stand_ins import Model, WithoutWorkers, config, prompts
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

into = Path(sys.argv[1])
mood, overrides = (sys.argv[2], sys.argv[3:]) if len(sys.argv) > 2 else ("", [])


class Trainer(WithoutWorkers, RayPPOTrainer):
    def __init__(self, told):
        model, first = Model(), 6 if mood == "shifted" else 0
        model.odd = mood == "odd"
        model.mood = {"silent": "silent", "other": "plus"}.get(mood, "")
        self.crash = mood == "crash"
        self.begin(told, model, [prompts(first, 2, "train"), prompts(first + 2, 2, "train")])


folders = {"validation_data_dir": str(into / "val"), "rollout_data_dir": str(into / "rollout")}
if mood == "unnamed":
    folders["logger"] = ["console"]
if mood == "full":  # verl's own files could not be written either
    folders = {}
if mood == "raise":
    from rolloutdeck.trainers.verl_plugin import legacy, metrics

    del legacy.Padded, metrics.session_named
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
trainer = Trainer(OmegaConf.merge(config(**folders), OmegaConf.from_dotlist(overrides)))
if mood == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
try:
    trainer.fit()
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (into / "seen.json").write_text(json.dumps(trainer.seen))
