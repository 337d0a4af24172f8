"""Run by the trainers' environment: where real verl looks for a step under each of the override lists of argv[1].

Prints one JSON list: per list of overrides {"config": the whole configuration as verl's loggers are given it,
"folders": {skip role: the folder of step 7}}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.utils.skip import SkipManager

found = []
with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
    for overrides in json.loads(sys.argv[1]):
        config = compose("ppo_trainer", overrides=overrides)
        SkipManager.init(config)
        folders = {role: str(manager._get_step_dump_dir(7)) for role, manager in SkipManager.skip_instances.items()}
        found.append({"config": OmegaConf.to_container(config, resolve=True), "folders": folders})
print(json.dumps(found))
