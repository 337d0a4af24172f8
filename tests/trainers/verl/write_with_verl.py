"""Run by the trainers' environment: real verl code writes one rollout step and two steps of metrics below argv[1]."""

import os
import sys
from pathlib import Path

import numpy as np

into = Path(sys.argv[1])
os.environ["VERL_FILE_LOGGER_PATH"] = str(into / "metrics.jsonl")

from verl.trainer.ppo.ray_trainer import RayPPOTrainer  # noqa: E402
from verl.utils.tracking import Tracking  # noqa: E402

trainer = RayPPOTrainer.__new__(RayPPOTrainer)  # its constructor wants GPUs; its writer wants a step and a thread
trainer.global_steps = 7
trainer._init_dump_executor()
trainer._dump_generations(
    inputs=["What is 2+2?", "What is 3+3?\u2028Think."],
    outputs=["4", "six 😀"],
    gts=["4", "6"],
    scores=[1.0, float("nan")],
    reward_extra_infos_dict={"acc": [np.bool_(True), np.bool_(False)], "overlong_reward": [0.0, -0.25]},
    dump_path=str(into / "rollouts"),
)
trainer._shutdown_dump_executor()

tracking = Tracking(project_name="math", experiment_name="qwen", default_backend=["file"])
tracking.log(data={"critic/score/mean": np.float32(0.25), "actor/entropy": float("nan")}, step=6)
tracking.log(data={"critic/score/mean": 0.5, "timing_s/gen": 3.5}, step=7)
