"""Starts `openrlhf.cli.train_ppo_ray` with the same arguments; each Ray process runs `plugin.prepare_process`.

Source: OpenRLHF 3c3be62, `train` in openrlhf/cli/train_ppo_ray.py: it uses a Ray that is initialised already.
"""

from __future__ import annotations

import os
import runpy
import time

SCRIPT = "openrlhf.cli.train_ppo_ray"
HOOK = "rolloutdeck.trainers.openrlhf.plugin.prepare_process"
GRACE_SECONDS = 3.0  # for the last rows: Ray kills its processes when this one ends
DEFAULT_VARIABLES = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}


def main() -> None:
    import ray

    variables = {name: os.environ.get(name, value) for name, value in DEFAULT_VARIABLES.items()}
    variables |= {name: value for name, value in os.environ.items() if name.startswith("ROLLOUTDECK_")}
    ray.init(runtime_env={"env_vars": variables, "worker_process_setup_hook": HOOK})
    try:
        runpy.run_module(SCRIPT, run_name="__main__", alter_sys=True)
    finally:
        time.sleep(GRACE_SECONDS)


if __name__ == "__main__":
    main()
