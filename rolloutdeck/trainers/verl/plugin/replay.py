"""Replays a run's plan in verl: the pin of a step is downloaded when the step starts, verified, and loaded by the safe
reader instead of verl.

The files are in a folder of this process only. Each is checked by its hash and by `safe_pickle.check_file_safety` after
the download, and its batch is built from the parsed content; verl unpickles none of it. If a pin can't be downloaded or
does not fit, the step is generated; the run ends only if the plan says to stop.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck import replay
from rolloutdeck.errors import NotReplayableError, SelectedSamplesError, UsageError
from rolloutdeck.lib import ServerClient, ServerUnreachableError, Settings, logger
from rolloutdeck.protocol import resolve_target
from rolloutdeck.replay import Placement, PlanEntry, PlanRevision
from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.trainer_config import flatten_settings
from rolloutdeck.trainers.common import (
    ReplayStoppedError,
    build_selection_fields,
    catch_errors,
    report_not_replayed,
    step_downloads,
)
from rolloutdeck.trainers.verl.layout import GEN, VerlRequirements, read_requirements
from rolloutdeck.trainers.verl.plugin import masked_rows
from rolloutdeck.trainers.verl.plugin.session import VerlSession, convert_config

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 30.0, 600.0
PLAN_SECONDS, PLAN_PAUSE_SECONDS = 180.0, 5.0  # for the plan, if the server does not respond at the start
PAUSE_REASON = "the server did not respond at an earlier prompt and is not asked for some time"

LOGPROBS = "rollout_log_probs"  # a field of the rows

SELECTED_REASON = "the plan selects an answer to this prompt, and generates such prompts again"


@dataclass(frozen=True)
class LoadedStep:
    """A step that is replayed. `batches`: file below `folder` -> what verl's loader would have returned for it.

    `repairs`: the differences from the pinned bytes, one sentence each. `masked`: the number of masked rows.
    """

    folder: Path
    batches: Mapping[Path, Any]
    repairs: Sequence[str] = ()
    masked: int = 0

    @property
    def rows(self) -> int:
        return sum(len(batch["keys"] if isinstance(batch, dict) else batch) for batch in self.batches.values())


class PromptDownloads:
    """Downloads the files of pinned prompts. Fully async generates nothing while a download waits: if the server does
    not respond, it is not asked again for a time that doubles until it responds."""

    def __init__(self) -> None:
        self._pause = self._end = 0.0  # in seconds, and when it ends

    def download_file(self, *args: Any, **kwargs: Any) -> None:
        """Like `step_downloads.download_file`. Raises ServerUnreachableError at once during a pause."""
        if time.monotonic() < self._end:
            raise ServerUnreachableError(PAUSE_REASON)
        pause, self._pause = self._pause, 0.0
        try:
            step_downloads.download_file(*args, **kwargs)
        except ServerUnreachableError:
            self._pause = min(MAX_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * pause))
            self._end = time.monotonic() + self._pause
            raise


class VerlReplay:
    """The replay in this process. `requirements`: what its trainer loads; `root` has the files of one step at once."""

    def __init__(self, session: VerlSession, requirements: VerlRequirements, plan: PlanRevision) -> None:
        self.session, self.requirements, self.plan = session, requirements, plan
        self.root = Path(tempfile.mkdtemp(prefix="rolloutdeck-replay-"))  # readable by this user only
        atexit.register(shutil.rmtree, self.root, ignore_errors=True)
        self.placements: dict[int, Placement] | None = None
        self.regenerated: dict[int, PlanEntry] = {}  # fully async: prompts generated again
        self.stopped: ReplayStoppedError | None = None  # why the plan has stopped the run
        self.downloads: Any = step_downloads
        if requirements.role == "async_rollout":
            self.downloads = PromptDownloads()
            self.placements = self._build_prompt_placements()

    def _build_prompt_placements(self) -> dict[int, Placement]:
        """Returns which prompt of the feed replays what, for the complete run. Raises ReplayStoppedError."""
        try:
            steps = replay.find_layout_steps(self.plan, self.requirements, None)
            placements, skipped = replay.build_placements(self.plan, self.requirements, steps)
        except UsageError as error:
            self.report_not_replayed(0, NotReplayableError(str(error)))
            return {}
        for text in skipped:
            logger.warning("%s", text)
        self.regenerated = dict(replay.find_regenerated_prompts(self.plan, self.requirements))
        return {placement.number: placement for placement in placements}

    @property
    def step_kind(self) -> str:
        return "feed_index" if self.requirements.role == "async_rollout" else "global_step"

    def has_step(self, step: int) -> bool:
        return self._find_entry(step) is not None

    def load_step(self, step: int, prompts: Sequence[Any] | None = None) -> LoadedStep | None:
        """Returns the step to replay, or None if the run must generate it, which is then reported.

        `prompts` are the messages of the rows to generate, if the trainer uses its own labels for the pinned rows.
        Raises ReplayStoppedError.
        """
        if step in self.regenerated:
            is_wanted = self.plan.on_selected == "regenerate"
            word = self.regenerated[step].selected_word
            reason = f"an answer to this prompt is {word}, and the plan excludes {word} samples"
            error = SelectedSamplesError(SELECTED_REASON) if is_wanted else NotReplayableError(reason)
            self.report_not_replayed(step, error, may_stop=False)
            return None
        start = time.monotonic()
        try:
            placement = self._find_placement(step)
            loaded = self._download(placement)
            check_prompts(loaded, prompts)
            check_logprobs(loaded, self.requirements.logprobs_setting)
        except SafePickleError as error:
            self.report_not_replayed(step, NotReplayableError(f"it can't be built without unpickling it: {error}"))
            return None
        except Exception as error:  # after any error the step can be generated
            self.report_not_replayed(step, error)
            return None
        pin, repairs, seconds = placement.entry.pin, " ".join(loaded.repairs), time.monotonic() - start
        entry, count = placement.entry, loaded.masked
        if entry.selected_action == "drop":
            count = int(entry.selected.get("prompts") or 0)
        details = {"step_kind": self.step_kind, "source": str(entry), **build_selection_fields(entry, count)}
        self.session.run.report_replay(step, "hit", pin, loaded.rows, seconds, repairs, **details)
        return loaded

    def _find_placement(self, step: int) -> Placement:
        """Raises NotReplayableError."""
        if self.placements is not None:
            return self.placements[step]
        try:
            if entry := self.plan.resolve(step):
                replay.check_regenerated(self.plan, entry, "verl")
            placements, skipped = replay.build_placements(self.plan, self.requirements, [step], has_plug_in=True)
        except UsageError as error:
            raise NotReplayableError(str(error)) from error
        if not placements:
            raise NotReplayableError(skipped[0])
        return placements[0]

    def _download(self, placement: Placement) -> LoadedStep:
        """Downloads and loads the files. Raises NotReplayableError, UsageError, SafePickleError, OSError."""
        settings = Settings.from_environment()
        server = ServerClient(settings.url, settings.token, settings.ca_bundle)
        folder, report = replay.ReplayFolder(self.root), partial(logger.info, "%s")
        download = self.downloads.download_file
        pull = replay.PlanPull(server, self.requirements, folder, report, raise_reason, download=download)
        pull.run([placement], {"plan": str(self.plan)})
        for text in pull.repaired:
            logger.warning("%s", text)
        # Imported here: it imports torch, which only a hit needs.
        from rolloutdeck.trainers.verl.plugin.load_batch import load_native_batch

        step_folder, names = self.root / placement.folder, [file.name for file in placement.files]
        files = [name for name in names if PurePosixPath(name).name in self.requirements.formats]
        batches = {name: load_native_batch(step_folder / name) for name in files}
        masked = masked_rows.tag_masked_rows(batches, placement.masked_rows)
        loaded = {step_folder / name: batch for name, batch in batches.items()}
        return LoadedStep(step_folder, loaded, tuple(pull.repaired), masked)

    def report_not_replayed(self, step: int, error: Exception, *, may_stop: bool = True) -> None:
        """Reports a step that is generated. Raises ReplayStoppedError if the plan says to stop."""
        entry = self._find_entry(step)
        try:
            report_not_replayed(self.session.run, self.plan, entry, step, error, self.step_kind, may_stop=may_stop)
        except ReplayStoppedError as stopped:
            self.stopped = stopped
            raise

    def _find_entry(self, step: int) -> PlanEntry | None:
        """Returns the plan's entry for a step, in fully async for a prompt of the feed."""
        if self.placements is not None:
            return self.placements[step].entry if step in self.placements else self.regenerated.get(step)
        return self.plan.resolve(step)


def raise_reason(entry: PlanEntry, error: NotReplayableError) -> None:
    raise error


def check_prompts(loaded: LoadedStep, prompts: Sequence[Any] | None) -> None:
    """Raises NotReplayableError if the pinned rows do not answer these prompts; None if the prompts are unknown."""
    if prompts is None:
        return
    if len(prompts) != loaded.rows:
        raise NotReplayableError(f"rows: {loaded.rows} pinned, {len(prompts)} requested")
    pinned = loaded.batches[loaded.folder / GEN].non_tensor_batch.get("raw_prompt", ())
    if len(pinned) != len(prompts):
        raise NotReplayableError(f"the prompts of {loaded.rows - len(pinned)} of its {loaded.rows} rows are not known")
    pairs = zip(map(serialize_messages, pinned), map(serialize_messages, prompts), strict=True)
    if different := sum(pinned_prompt != prompt for pinned_prompt, prompt in pairs):
        raise NotReplayableError(f"the prompts of {different} of {len(prompts)} rows are not those that were answered")


def check_logprobs(loaded: LoadedStep, setting: str) -> None:
    """Raises NotReplayableError if `setting` of the run needs log-probs that the pinned rows do not have."""
    if not setting:
        return
    tensors = [batch["tensordict"] if isinstance(batch, dict) else batch.batch for batch in loaded.batches.values()]
    if not all(LOGPROBS in {*fields.keys()} for fields in tensors):
        raise NotReplayableError(f"its rows have no {LOGPROBS}, which {setting}=True of this run needs")


def serialize_messages(messages: Any) -> str:
    """Returns the role and text of each message: what a chat template uses."""
    values = messages.tolist() if hasattr(messages, "tolist") else messages
    if not isinstance(values, (list, tuple)):
        return str(values)
    pairs = [[item.get("role"), item.get("content")] if isinstance(item, dict) else item for item in values]
    return json.dumps(pairs, ensure_ascii=False, default=str)


@catch_errors
def open_replay(session: VerlSession, config: Any) -> VerlReplay | None:
    """Returns the replay of the plan in ROLLOUTDECK_PLAN; None without a plan, or if it is empty."""
    if not Settings.from_environment().plan:
        return None
    requirements = read_requirements(dict(flatten_settings(convert_config(config))))
    plan = request_plan(session, requirements)
    if not plan:
        return None
    resolve_target(plan.action, [], 1)  # an unknown action must fail here, not at a step
    logger.info("The run replays the plan %s.", plan)
    return VerlReplay(session, requirements, remove_states(plan))


def request_plan(session: VerlSession, requirements: VerlRequirements) -> PlanRevision:
    """Returns the plan; an empty one if there is none or the server does not respond for three minutes.

    verl must know at the start whether steps are skipped, so the plan can't be requested again at a later step.
    """
    end = time.monotonic() + PLAN_SECONDS
    plan = session.run.replay_plan(facts=requirements.facts)
    while plan.failure and time.monotonic() < end:
        logger.warning("The replay plan is requested again in %d seconds: %s", PLAN_PAUSE_SECONDS, plan.failure)
        time.sleep(PLAN_PAUSE_SECONDS)
        plan = session.run.replay_plan(facts=requirements.facts)
    if plan.failure:
        logger.error("Nothing is replayed, since the server does not respond: %s", plan.failure)
    return plan


def remove_states(plan: PlanRevision) -> PlanRevision:
    """Returns the plan without the artifacts' states: files that are missing now may be uploaded before their step."""
    entries = (
        replace(entry, artifacts=tuple(replace(artifact, state="") for artifact in entry.artifacts))
        for entry in plan.entries
    )
    return replace(plan, entries=tuple(entries))
