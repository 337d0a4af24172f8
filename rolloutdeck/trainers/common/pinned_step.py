"""Pins that are replayed completely or not at all: steps of TRL and rollouts of slime.

Checks whether a pin can be replayed, downloads its files and reports a step that is not replayed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.errors import NotReplayableError, SelectedSamplesError
from rolloutdeck.lib import (
    DownloadLimits,
    DownloadProgress,
    ServerClient,
    ServerUnreachableError,
    Settings,
    download_file,
    logger,
)
from rolloutdeck.replay import PinnedArtifact, PlanEntry, PlanRevision, check_regenerated
from rolloutdeck.trainers.common import patching

FINAL_STATES = ("unsafe", "gone")  # of an artifact whose files no trainer gets
FIRST_LIMITS = DownloadLimits(wait=10.0, total=20.0)
FAILING_LIMITS = DownloadLimits(tries=1, wait=5.0, total=5.0)  # after a download without a response


class StepDownloads:
    """Downloads the files of pinned steps while the trainer waits, which can also generate the step.

    If the server does not respond, the next downloads wait less, until one succeeds.
    """

    def __init__(self) -> None:
        self.is_failing = False

    def download_file(
        self,
        server: ServerClient,
        path: str,
        into: Path,
        sha256: str,
        size: int,
        progress: DownloadProgress = lambda count: None,
    ) -> None:
        """Like `lib.download_file`, but it waits for seconds at most if the server does not respond."""
        limits = FAILING_LIMITS if self.is_failing else FIRST_LIMITS
        try:
            download_file(server, path, into, sha256, size, progress, limits)
        except ServerUnreachableError:
            self.is_failing = True
            raise
        self.is_failing = False


step_downloads = StepDownloads()


def check_pinned_step(plan: PlanRevision, entry: PlanEntry, unit: str = "") -> None:
    """Raises NotReplayableError with the reason if the pin can't be replayed.

    `unit` is set if by default the trainer excludes no samples from the pin, e.g. "a step of TRL". Raises
    SelectedSamplesError if the plan generates a step with selected samples again.
    """
    if entry.is_incompatible:
        raise NotReplayableError(entry.incompatibilities)
    if not plan.changes_selected or not entry.selected_count:
        return
    if unit and (plan.on_selected == "exclude" or not entry.selected_action):
        word = entry.selected_word
        raise NotReplayableError(f"the plan leaves out what is {word}, and {unit} is replayed whole or not at all")
    check_regenerated(plan, entry, unit)


def build_selection_fields(entry: PlanEntry, count: int, action: str = "") -> dict[str, Any]:
    """Returns the arguments of `report_replay` for a step of which `count` samples were masked, or prompts dropped or
    generated again; {} for a plan that keeps all samples."""
    action = action or entry.selected_action
    if action in ("", "keep"):
        return {}
    return {"selected_action": action, "selected": count, "guidance_version": entry.guidance_version}


@contextmanager
def download_pinned_file(entry: PlanEntry, artifact: PinnedArtifact, name: str) -> Iterator[Path]:
    """Downloads a file of one of the entry's artifacts into a folder that only this user can read.

    Checks its hash. Raises NotReplayableError, DownloadError, ServerUnreachableError, OSError.
    """
    if artifact.state in FINAL_STATES:  # files that were missing when the run started may have arrived since
        raise NotReplayableError(f"its files are not on the server ({artifact.state})")
    settings, file = Settings.from_environment(), entry.build_file(artifact, name)
    server = ServerClient(settings.url, settings.token, settings.ca_bundle)
    with tempfile.TemporaryDirectory(prefix="rolloutdeck-replay-") as folder:
        path = Path(folder, Path(name).name)
        step_downloads.download_file(server, file.address, path, file.sha256, file.size)
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
    reason = str(error) or type(error).__name__
    by_plan = isinstance(error, SelectedSamplesError)
    outcome = "refused" if isinstance(error, NotReplayableError) and not by_plan else "miss"
    label = "Rollout" if step_kind == "rollout_id" else "Step"
    if run is not None:
        selected = build_selection_fields(entry, 1, "regenerate") if by_plan and entry else {}
        run.report_replay(step, outcome, entry.pin if entry else None, reason=reason, step_kind=step_kind, **selected)
        if by_plan:
            logger.info("%s %d is generated again: %s", label, step, reason)
        else:
            logger.warning("%s %d is not replayed (%s): %s", label, step, outcome, reason)
    if may_stop and not by_plan and plan.on_mismatch == "stop":
        message = f"The replay plan {plan} says to stop where a pin can't be replayed."
        raise patching.ReplayStoppedError(f"{message} {label} {step}: {reason}")
