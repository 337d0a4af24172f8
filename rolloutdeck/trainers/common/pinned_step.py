"""Pins that are replayed completely or not at all: steps of TRL and rollouts of slime.

Checks whether a pin can be replayed, downloads its files and reports a step that is not replayed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rolloutdeck.client import Run
from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import ServerClient, Settings, download_file, logger
from rolloutdeck.replay import PinnedArtifact, PlanEntry, PlanRevision
from rolloutdeck.trainers.common import patching


def check_pinned_step(plan: PlanRevision, entry: PlanEntry, unit: str = "") -> None:
    """Raises NotReplayableError with the reason if the pin can't be replayed.

    `unit` is set if flagged samples can't be excluded from the pin, e.g. "a step of TRL".
    """
    if entry.is_incompatible:
        raise NotReplayableError(entry.incompatibilities)
    if unit and plan.exclude_flagged and entry.source.get("flagged"):
        raise NotReplayableError(f"the plan leaves out what is flagged, and {unit} is replayed whole or not at all")


@contextmanager
def download_pinned_file(entry: PlanEntry, artifact: PinnedArtifact, name: str) -> Iterator[Path]:
    """Downloads a file of one of the entry's artifacts into a folder that only this user can read.

    Checks its hash. Raises NotReplayableError, DownloadError, ServerUnreachableError, OSError.
    """
    if artifact.state not in ("", "ready"):
        raise NotReplayableError(f"its files are not on the server ({artifact.state})")
    settings, file = Settings.from_environment(), entry.build_file(artifact, name)
    server = ServerClient(settings.url, settings.token, settings.ca_bundle)
    with tempfile.TemporaryDirectory(prefix="rolloutdeck-replay-") as folder:
        path = Path(folder, Path(name).name)
        download_file(server, file.address, path, file.sha256, file.size)
        yield path


def report_not_replayed(
    run: Run | None,
    plan: PlanRevision,
    entry: PlanEntry | None,
    step: int,
    error: Exception,
    step_kind: str = "global_step",
    *,
    may_stop: bool = True,
) -> None:
    """Reports a step that is generated instead of replayed. Without `run`, another process reports it.

    Raises ReplayStoppedError if the plan's action on a mismatch is to stop.
    """
    outcome, reason = "refused" if isinstance(error, NotReplayableError) else "miss", str(error) or type(error).__name__
    label = "Rollout" if step_kind == "rollout_id" else "Step"
    if run is not None:
        run.report_replay(step, outcome, pin=entry.pin if entry else None, reason=reason, step_kind=step_kind)
        logger.warning("%s %d is not replayed (%s): %s", label, step, outcome, reason)
    if may_stop and plan.on_mismatch == "stop":
        message = f"The replay plan {plan} says to stop where a pin can't be replayed."
        raise patching.ReplayStoppedError(f"{message} {label} {step}: {reason}")
