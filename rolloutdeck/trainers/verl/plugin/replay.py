"""A run's replay plan inside verl: the pin of a step is fetched when the step comes, verified, and loaded by the safe
reader in verl's stead.

A folder of this process alone holds the bytes. Each file is checked by its hash and by `safe.check` after it has
arrived, and its batch is built from what is read; verl unpickles none of it. A pin that cannot be had or does not fit
costs a generation, never the run, unless the plan says to stop.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import NotReplayableError, UsageError
from rolloutdeck.lib import ServerClient, Settings, logger
from rolloutdeck.protocol import resolve_target
from rolloutdeck.replay import (
    Placement,
    PlanEntry,
    PlanPull,
    PlanRevision,
    ReplayFolder,
    build_placements,
    find_flagged_prompts,
    find_layout_steps,
)
from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.trainer_config import flatten_settings
from rolloutdeck.trainers.common import ReplayStoppedError, catch_errors
from rolloutdeck.trainers.verl.layout import GEN, VerlRequirements, read_requirements
from rolloutdeck.trainers.verl.plugin.session import VerlSession, convert_config

FLAGGED_REASON = "an answer to this prompt is flagged, and the plan leaves out what is flagged"


@dataclass(frozen=True)
class LoadedStep:
    """A step that is replayed: `batches` are what verl's loader would have returned for the files below `folder`.
    `mended` says in what they are not the pinned bytes, a sentence each."""

    folder: Path
    batches: Mapping[Path, Any]
    mended: Sequence[str] = ()

    @property
    def rows(self) -> int:
        return sum(len(batch["keys"] if isinstance(batch, dict) else batch) for batch in self.batches.values())


class VerlReplay:
    """What this process replays. `asking` is what its trainer loads; `root` holds one step's files at a time."""

    def __init__(self, session: VerlSession, asking: VerlRequirements, plan: PlanRevision) -> None:
        self.session, self.asking, self.plan = session, asking, plan
        self.root = Path(tempfile.mkdtemp(prefix="rolloutdeck-replay-"))  # readable by this user only
        atexit.register(shutil.rmtree, self.root, ignore_errors=True)
        self.by_folder: dict[int, Placement] | None = None
        self.flagged: dict[int, PlanEntry] = {}  # fully async: prompts that a flag leaves out
        if asking.role == "async_rollout":
            self.by_folder = self._feeds()

    def _feeds(self) -> dict[int, Placement]:
        """Fully async: which prompt of the feed replays what, for the whole run. Raises Stop."""
        try:
            found, left_out = build_placements(self.plan, self.asking, find_layout_steps(self.plan, self.asking, None))
        except UsageError as error:
            self.leave(0, "refused", str(error))
            return {}
        for text in left_out:
            logger.warning("%s", text)
        self.flagged = dict(find_flagged_prompts(self.plan, self.asking))
        return {placement.number: placement for placement in found}

    @property
    def step_kind(self) -> str:
        return "feed_index" if self.asking.role == "async_rollout" else "global_step"

    def wants(self, step: int) -> bool:
        """Whether the plan has something for this step."""
        if self.by_folder is not None:
            return step in self.by_folder or step in self.flagged
        return self._entry(step) is not None

    def loaded(self, step: int, prompts: Sequence[Any] | None = None) -> LoadedStep | None:
        """What the step replays, or None where the run has to generate, which is then reported.

        `prompts` are the messages of the rows that ask, where the trainer keeps its own labels for the pinned rows.
        Raises Stop.
        """
        if step in self.flagged:
            self._tell(step, "refused", FLAGGED_REASON)
            return None
        start = time.monotonic()
        placement, reason = self._placement(step)
        if placement is None:
            self.leave(step, "refused", reason)
            return None
        try:
            found = self._brought(placement)
            reason = differs(found, prompts)
        except SafePickleError as error:
            reason = f"it can't be built without unpickling it: {error}"
        except NotReplayableError as error:
            reason = str(error)
        except Exception as error:  # whatever it is, the step can be generated
            self.leave(step, "miss", str(error) or type(error).__name__)
            return None
        if reason:
            self.leave(step, "refused", reason)
            return None
        seconds = time.monotonic() - start
        pin, reason = placement.entry.pin, " ".join(found.mended)
        self.session.run.report_replay(step, "hit", pin, found.rows, seconds, reason, step_kind=self.step_kind)
        logger.info("Step %d replays %s: %d rows in %.1f s.", step, placement.entry, found.rows, seconds)
        return found

    def _placement(self, step: int) -> tuple[Placement | None, str]:
        if self.by_folder is not None:
            return self.by_folder[step], ""
        try:
            found, left_out = build_placements(self.plan, self.asking, [step])
        except UsageError as error:
            return None, str(error)
        return (found[0], "") if found else (None, left_out[0])

    def _brought(self, placement: Placement) -> LoadedStep:
        """Raises NotReplayableError, UsageError, SafePickleError, OSError."""
        settings = Settings.from_environment()
        server = ServerClient(settings.url, settings.token, settings.ca_bundle)
        pull = PlanPull(
            server, self.asking, ReplayFolder(self.root), lambda text: logger.info("%s", text), raise_reason
        )
        pull.run([placement], {"plan": str(self.plan)})
        for text in pull.repaired:
            logger.warning("%s", text)
        from rolloutdeck.trainers.verl.plugin.load_batch import load_native_batch  # and torch, which only a hit needs

        folder = self.root / placement.folder
        files = [folder / file.name for file in placement.files if PurePosixPath(file.name).name in self.asking.formats]
        return LoadedStep(folder, {file: load_native_batch(file) for file in files}, tuple(pull.repaired))

    def leave(self, step: int, outcome: str, reason: str) -> None:
        """Reports a step that is generated after all. Raises Stop where the plan asks for it."""
        self._tell(step, outcome, reason)
        if self.plan.on_mismatch == "stop":
            raise ReplayStoppedError(
                f"The replay plan {self.plan} says to stop where a pin can't be replayed. Step {step}: {reason}"
            )

    def _tell(self, step: int, outcome: str, reason: str) -> None:
        entry = self._entry(step)
        pin = entry.pin if entry else None
        self.session.run.report_replay(step, outcome, pin=pin, reason=reason, step_kind=self.step_kind)
        logger.warning("Step %d is not replayed (%s): %s", step, outcome, reason)

    def _entry(self, step: int) -> PlanEntry | None:
        """What the plan has for a step; in fully async for a prompt of the feed."""
        if self.by_folder is not None:
            return self.by_folder[step].entry if step in self.by_folder else self.flagged.get(step)
        return self.plan.resolve(step)


def raise_reason(entry: PlanEntry, why: NotReplayableError) -> None:
    raise why


def differs(found: LoadedStep, prompts: Sequence[Any] | None) -> str:
    """Why the pinned rows are no answers to these prompts; "" where they are, or where nobody can tell."""
    if prompts is None:
        return ""
    if len(prompts) != found.rows:
        return f"rows: {found.rows} pinned, {len(prompts)} asked for"
    pinned = found.batches[found.folder / GEN].non_tensor_batch.get("raw_prompt", ())
    wrong = sum(
        serialize_messages(one) != serialize_messages(other) for one, other in zip(pinned, prompts, strict=False)
    )
    return f"the prompts of {wrong} of {len(prompts)} rows are not those that were answered" if wrong else ""


def serialize_messages(messages: Any) -> str:
    """The role and text of each message: what a chat template makes a prompt of."""
    found = messages.tolist() if hasattr(messages, "tolist") else messages
    if not isinstance(found, (list, tuple)):
        return str(found)
    pairs = [[one.get("role"), one.get("content")] if isinstance(one, dict) else one for one in found]
    return json.dumps(pairs, ensure_ascii=False, default=str)


@catch_errors
def open_replay(session: VerlSession, config: Any) -> VerlReplay | None:
    """The replay of the plan that ROLLOUTDECK_PLAN names; None without one, or where it has nothing."""
    if not Settings.from_environment().plan:
        return None
    settings = dict(flatten_settings(convert_config(config)))
    wanted = read_requirements(settings)
    plan = session.run.replay_plan(facts=wanted.facts)
    if not plan:
        return None
    resolve_target(plan.action, [], 1)  # an action that we don't know must show here, not at a step
    logger.info("The run replays the plan %s.", plan)
    return VerlReplay(session, wanted, without_states(plan))


def without_states(plan: PlanRevision) -> PlanRevision:
    """Bytes that are not on the server when the run begins may be there when it comes to their step."""
    entries = (
        replace(entry, artifacts=tuple(replace(artifact, state="") for artifact in entry.artifacts))
        for entry in plan.entries
    )
    return replace(plan, entries=tuple(entries))
