"""Real `Tracking` of verl with our backend; what the plug-in says of itself goes to standard output as JSON."""

import json
import sys
import time

import verl  # noqa: F401 - loads the plug-ins

loaded = "rolloutdeck.trainers.verl.plugin" in sys.modules
from verl.utils.import_utils import import_external_libs  # noqa: E402
from verl.utils.tracking import Tracking  # noqa: E402

if "late" in sys.argv:  # as HFModelConfig does for actor_rollout_ref.model.external_lib
    import_external_libs("rolloutdeck.trainers.verl")

import rolloutdeck.trainers.verl.plugin as plugin  # noqa: E402

plugin.install_plugin()  # again, as external_lib and the entry point together do
start = time.perf_counter()
tracking = Tracking("math", "qwen", ["console", "rolloutdeck"], config={"trainer": {"lr": 3}, "data": {"n": 4}})
for step in (1, 2):
    tracking.log({"critic/score/mean": step / 4, "actor/entropy": float("nan")}, step=step)
seconds = time.perf_counter() - start
tracking.finish(exit_code=int(sys.argv[2]))
tracking.finish()
print(json.dumps({"loaded": loaded, "seconds": seconds, "backends": Tracking.supported_backend.count("rolloutdeck")}))
