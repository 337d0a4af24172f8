"""What slime's own loaders make of a folder of rollouts. Arguments: the folder that gets the answer, and the template
of the files; ROLLOUTS says which ids are loaded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, os.environ["SLIME"])

import torch
from slime.observability.rollout_data_utils import load_debug_rollout_data
from slime.rollout.forge_load import generate_rollout

FOLDER, TEMPLATE = Path(sys.argv[1]), sys.argv[2]


def main() -> None:
    args, created = SimpleNamespace(load_forge_rollout_data=TEMPLATE), {}
    for rollout in map(int, os.environ["ROLLOUTS"].split()):
        debug = load_debug_rollout_data(TEMPLATE, rollout_id=rollout)
        forge = generate_rollout(args, rollout, None).samples
        weights = torch.load(TEMPLATE.format(rollout_id=rollout), weights_only=True)["samples"]
        created[rollout] = [[item.to_dict() for item in debug], [item.to_dict() for item in forge], weights]
    (FOLDER / "loaded.json").write_text(json.dumps(created))


main()
