"""ROLL's own registry of trackers, as its pipelines use it: a launch, and one that resumes it.

python tracking.py DIR
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from roll.utils.tracking import create_tracker

from rolloutdeck.trainers import roll

roll.track()
config = {"rollout_dump_dir": sys.argv[1], "exp_name": "demo"}
history = [{"critic/score/mean@mean": 0.1 * step, "system/step": step} for step in range(2)]
first = create_tracker("rolloutdeck", config)
for metrics in history:
    first.log(values=metrics, step=metrics["system/step"])
resumed = create_tracker("rolloutdeck", config, also="stdout")
with ThreadPoolExecutor(1) as pool:  # base_pipeline.py: resume_metrics
    for metrics in history:
        pool.submit(resumed.log, values=metrics, step=metrics["system/step"]).result()
resumed.log(values={"critic/score/mean@mean": 0.5}, step=2)
resumed.finish()
