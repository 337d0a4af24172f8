"""What `rolloutdeck up --demo` runs: two trainings, flags, a finding, a pinned step and a run that replays it.

    rolloutdeck up                   # in another terminal
    python examples/tiny_demo.py     # needs torch==2.13.0 and rolloutdeck

1. `tiny-grpo` learns to calculate. While it trains, its worst samples are flagged, a finding shows one, and a step is
   pinned.
2. `tiny-grpo-any` has a grader with a fault: it accepts any of several answers. Its model lists many answers, and its
   score rises for the wrong reason. Search for it with `is:answer-mismatch`.
3. `tiny-grpo-replay` replays the pinned step instead of generating.

All of it is done with the API and the Python client, as your own scripts do it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rolloutdeck.lib import ServerClient, ServerUnreachableError, Settings
from rolloutdeck.up import end_with_parent

TRAINING = Path(__file__).with_name("tiny_grpo.py")
FIRST_RUN = "tiny-grpo"
PLAN = "demo"  # not `default`, which your own runs replay; `demo-2` if the project has the demo already
MAX_WAIT_SECONDS = 1800.0


class DemoError(Exception):
    """The server refused a request, or did not answer in time."""


class Api:
    """Requests to the server of the environment, as JSON."""

    def __init__(self) -> None:
        settings = Settings.from_environment()
        self.client = ServerClient(settings.url, settings.token)

    def get(self, path: str, **query: Any) -> Any:
        return self.read(self.client.request("GET", path, query=query))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        return self.read(self.client.request("POST", path, body=data, headers=headers))

    @staticmethod
    def read(response: Any) -> Any:
        if not response.is_success:
            raise DemoError(response.error_message)
        return response.json()


def wait_for(find: Callable[[], Any], training: subprocess.Popen[bytes]) -> Any:
    """Returns the first result that is true. Raises DemoError if the training fails or it takes too long."""
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < deadline:
        if result := find():
            return result
        if training.poll():
            raise DemoError(f"the training ended with status {training.returncode}")
        time.sleep(1)
    raise DemoError(f"nothing arrived within {MAX_WAIT_SECONDS:.0f} s")


def start_training(name: str, steps: int, *args: str, plan: str = "") -> subprocess.Popen[bytes]:
    """Starts a training that ends when this process ends."""
    environ = {**os.environ, "ROLLOUTDECK_PLAN": plan} if plan else None
    command = [sys.executable, str(TRAINING), "--name", name, "--steps", str(steps), *args]
    return subprocess.Popen(command, env=environ, preexec_fn=partial(end_with_parent, os.getpid()))


def list_runs(api: Api) -> set[str]:
    """Returns the ids of the newest runs of the project."""
    return {run["id"] for run in api.get("runs/")["results"] if run["project"] == "demo"}


def find_wrong_samples(api: Api, run: str, step: int) -> list[dict[str, Any]]:
    """Returns samples of a step, the lowest score first, if possible of groups with right and wrong answers. Empty
    until the step is indexed."""
    query = {"run": run, "split": "train", "step": step, "ordering": "score"}
    mixed = api.get("samples/", **query, q="-is:zerovar -is:correct")["results"]
    return list(mixed or api.get("samples/", **query)["results"])


def annotate(api: Api, run: str, step: int, samples: list[dict[str, Any]], plan: str) -> None:
    """Flags three samples, shows one in a finding, and pins the step for the plan."""
    for sample in samples[:3]:
        api.post("flags/", {"sample": sample["id"], "text": "The intermediate steps and the result disagree."})
    note = "About half of the prompts have right and wrong answers at this step, so the model learns from them."
    finding = api.post("findings/", {"project": "demo", "title": "What the model gets wrong early on", "note": note})
    exhibits = f"findings/{finding['id']}/exhibits/"
    api.post(exhibits, {"sample": samples[0]["id"], "words": "A wrong answer in the right form."})
    api.post(exhibits, {"run": run, "q": "-is:correct", "split": "train", "step": step, "words": "All of them."})
    api.post(exhibits, {"run": run, "names": ["critic/score/mean"], "words": "The score up to now."})
    note = "Replayed by tiny-grpo-replay. The prompts of a step are the same in each run."
    api.post("pins/", {"run": run, "step": step, "target_step": step, "plan": plan, "note": note})


def run_demo(api: Api, steps: int, pinned: int, args: list[str]) -> None:
    earlier = list_runs(api)
    first = start_training(FIRST_RUN, steps, *args)
    (run,) = wait_for(lambda: list_runs(api) - earlier, first)
    # A server numbers runs of one name, so each time the demo runs it has a plan of its own.
    plan = PLAN + api.get(f"runs/{run}/")["name"].removeprefix(FIRST_RUN)
    annotate(api, run, pinned, wait_for(lambda: find_wrong_samples(api, run, pinned), first), plan)
    second = start_training("tiny-grpo-any", steps // 2, "--grader", "any", *args)
    for training in (first, second):
        if training.wait():
            raise DemoError(f"a training ended with status {training.returncode}")
    start_training("tiny-grpo-replay", min(steps, pinned + 20), "--lr", "1e-3", *args, plan=plan).wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fill the project `demo` with trainings, flags, a finding and a pin.")
    parser.add_argument("--steps", type=int, default=400, help="steps of the first training")
    parser.add_argument("--pin", type=int, default=40, metavar="STEP", help="the step to pin and replay")
    args, others = parser.parse_known_args()
    try:
        run_demo(Api(), args.steps, min(args.pin, args.steps), others)
    except (DemoError, ServerUnreachableError) as error:
        print(f"The demo stopped: {str(error).rstrip('.')}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
