"""Runs two rollouts and an eval through all five hooks of slime, as a process of its own. Prints what slime continues
with. Arguments: a folder, and what fails: "" (nothing), `raise`, `full` (no file can grow), or `kill` (the test ends
the server before a pin is downloaded, with the files `asked` and `gone` in the folder). With `without`, our hooks are
not used."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolloutdeck.lib import download
from rolloutdeck.trainers import slime
from rolloutdeck.trainers.common import pinned_step
from rolloutdeck.trainers.common import session as shared
from rolloutdeck.trainers.slime.plugin import record, replay, session
from tests.rolloutdeck.support import fake_slime

FOLDER, FAILURE = Path(sys.argv[1]), sys.argv[2]
ARGS = fake_slime.arguments(
    rollout_batch_size=8,
    rolloutdeck_rollout_function_path="tests.rolloutdeck.support.fake_slime.generate",
    save_debug_rollout_data=str(fake_slime.DATA / "{rollout_id}.pt"),
)


def get_hook(name: str) -> Callable[..., Any]:
    """Returns a hook of ours, or what slime does without it if our functions are not used."""
    if FAILURE != "without":
        return getattr(slime, name)  # type: ignore[no-any-return]
    return fake_slime.generate if name == "generate_rollout" else lambda *_, **__: None


def raise_error(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a mistake of ours")


def delay_download(original: Callable[..., Any]) -> Callable[..., Any]:
    def download_after_kill(*args: Any, **named: Any) -> Any:
        (FOLDER / "asked").touch()
        end = time.monotonic() + 100
        while not (FOLDER / "gone").exists() and time.monotonic() < end:
            time.sleep(0.01)
        return original(*args, **named)

    return download_after_kill


def run_rollout(step: int, source: fake_slime.Prompts) -> dict[str, Any]:
    result = get_hook("generate_rollout")(ARGS, step, source, evaluation=False).samples
    samples = [item for group in result for item in (group if isinstance(group, list) else [group])]
    for sample in samples:
        get_hook("sample_hook")(ARGS, sample, rollout_id=step, evaluation=False)
    get_hook("all_samples")(ARGS, result, source)
    values = get_hook("log_rollout")(step, ARGS, samples[:6], {"rollout/x": 1.0}, 2.0)
    return {"samples": [item.to_dict() for item in samples], "prompts": source.count, "suppressed": bool(values)}


def main() -> None:
    source = fake_slime.Prompts()
    created: dict[str, Any] = {str(step): run_rollout(step, source) for step in range(2)}
    info = {"rewards": [0.0], "truncated": [False], "samples": fake_slime.read_samples("0.pt")[:1]}
    created["eval"] = bool(get_hook("log_eval")(1, ARGS, {"aime": info}, None))
    print(json.dumps(created))


sys.modules.update(fake_slime.modules())
download.FIRST_RETRY_SECONDS, shared.MAX_WAITING_STEPS = 0.05, 100  # a rollout takes no time here
if FAILURE == "raise":
    for module, name in ((record, "get_slime_session"), (record, "freeze_sample"), (replay, "get_slime_session")):
        setattr(module, name, raise_error)
if FAILURE == "kill":
    vars(pinned_step)["download_file"], session.EXIT_SECONDS = delay_download(download.download_file), 1.0
if FAILURE == "full":
    tempfile.gettempdir()  # finds the folder by writing a file
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
main()
