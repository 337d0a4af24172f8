"""Starts `openrlhf.cli.train_ppo_ray` with the same arguments; each Ray process runs `plugin.prepare_process`.

Source: OpenRLHF 3c3be62, `train` in openrlhf/cli/train_ppo_ray.py: it uses a Ray that is initialised already.
Ray 2.60: `init` in ray/_private/worker.py, for submitted jobs.
"""

from __future__ import annotations

import json
import os
import runpy
import time
from collections.abc import Callable

SCRIPT = "openrlhf.cli.train_ppo_ray"
HOOK = "rolloutdeck.trainers.openrlhf.plugin.prepare_process"
GRACE_SECONDS = 3.0  # for the last rows: Ray kills its processes when this one ends
DEFAULT_VARIABLES = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray in the driver of a submitted job
TOKEN = "ROLLOUTDECK_TOKEN"


def main() -> None:
    import ray

    variables = read_variables()
    token = variables.pop(TOKEN, "")
    hook = build_token_hook(token) if token else HOOK
    ray.init(runtime_env={"env_vars": variables, "worker_process_setup_hook": hook})
    try:
        runpy.run_module(SCRIPT, run_name="__main__", alter_sys=True)
    finally:
        time.sleep(GRACE_SECONDS)


def read_variables() -> dict[str, str]:
    """Returns the environment variables for Ray's processes, without those that the submitted job already passes.

    Ray refuses a variable that both pass, even if the values are equal.
    """
    variables = {name: os.environ.get(name, value) for name, value in DEFAULT_VARIABLES.items()}
    variables |= {name: value for name, value in os.environ.items() if name.startswith("ROLLOUTDECK_")}
    job = json.loads(os.environ.get(JOB_CONFIG, "{}")).get("runtime_env") or {}
    job_variables = job.get("env_vars") or {}
    return {name: value for name, value in variables.items() if name not in job_variables}


def build_token_hook(token: str) -> Callable[[], None]:
    """Returns a hook that also sets the token. Ray shows variables in its dashboard, but not the content of a hook."""

    def prepare_process() -> None:
        from rolloutdeck.trainers.openrlhf import plugin

        os.environ[TOKEN] = token
        plugin.prepare_process()

    return prepare_process


if __name__ == "__main__":
    main()
