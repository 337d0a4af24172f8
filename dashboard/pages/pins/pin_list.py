"""Pins and replays as pages show them: states, upload commands, links and names."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import attrgetter, or_

from django.db.models import Q
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from rollouts.models import Pin, Project, Replay, Step
from rollouts.pins import PinStatus, UploadHost, load_pin_statuses

MAX_COMMANDS = 20
UPLOAD_COMMANDS = ("import", "watch", "sync")
PIN_STATE_NAMES = {
    "waiting": N_("waiting"),
    "uploading": N_("uploading"),
    "ready": N_("ready"),
    "unsafe": N_("unsafe"),
    "gone": N_("unavailable"),
}

StepKey = tuple[int, int, str, str, int]  # run id, attempt id, split, step kind, step


@dataclass(frozen=True, slots=True)
class PinSource:
    """A host with bytes that are not uploaded yet. `is_polling`: it polled within the last minute."""

    host: str
    paths: tuple[str, ...]
    commands: tuple[str, ...]
    is_polling: bool

    @property
    def path_summary(self) -> str:
        more = len(self.paths) - 1
        if not more:
            return self.paths[0]
        text = ngettext("{path} and {count} other folder", "{path} and {count} other folders", more)
        return text.format(path=self.paths[0], count=more)

    @property
    def command_lines(self) -> str:
        more = len(self.commands) - MAX_COMMANDS
        return "\n".join(self.commands[:MAX_COMMANDS]) + (f"\n# and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class PinState:
    """`key` is one of `PIN_STATE_NAMES`; `percent` is the uploaded part of the bytes, None if nothing is uploading."""

    key: str
    percent: int | None = None
    message: str = ""
    prompts: str = ""
    sources: tuple[PinSource, ...] = ()

    @property
    def name(self) -> str:
        return _(PIN_STATE_NAMES[self.key])

    @property
    def label(self) -> str:
        return self.name if self.percent is None else f"{self.name} {self.percent} %"


@dataclass(slots=True)
class PinRow:
    pin: Pin
    step: Step | None
    state: PinState
    bytes: int
    link: str
    targets: list[int] = field(default_factory=list)


def load_pin_rows(project: Project, targets: dict[int, list[int]]) -> list[PinRow]:
    """The project's pins, newest first. `targets`: {pin id: target steps}."""
    pins = project.pins.filter(removed_at=None, run__deleted_at=None).order_by("-created_at", "-pk")
    return build_pin_rows(list(pins.select_related("run__project", "attempt", "user")), targets)


def build_pin_rows(pins: Sequence[Pin], targets: dict[int, list[int]]) -> list[PinRow]:
    steps = Step.objects.filter(run__in={pin.run_id for pin in pins}, step__in={pin.step for pin in pins})
    by_key = {build_step_key(step): step for step in steps}
    statuses = load_pin_statuses(pins)
    return [
        build_pin_row(pin, by_key.get(build_step_key(pin)), statuses[pin.pk], targets.get(pin.pk, [])) for pin in pins
    ]


def build_step_key(row: Pin | Step) -> StepKey:
    return row.run_id, row.attempt_id, row.split, row.step_kind, row.step


def build_pin_row(pin: Pin, step: Step | None, status: PinStatus, targets: list[int]) -> PinRow:
    size = sum(artifact.bytes for artifact in status.artifacts)
    return PinRow(pin, step, build_pin_state(pin, status), size, build_pin_link(pin, step), targets)


def build_pin_state(pin: Pin, status: PinStatus) -> PinState:
    prompts, percent = "", status.percent if status.state == "uploading" else None
    if status.prompts is not None:
        text = _("{available} of {prompts} prompts available")
        prompts = text.format(available=status.available, prompts=status.prompts)
    sources = tuple(build_pin_sources(pin, status.senders))
    return PinState(status.state, percent, " ".join(status.messages), prompts, sources)


def build_pin_sources(pin: Pin, senders: Iterable[UploadHost]) -> Iterator[PinSource]:
    """One for each host, ordered by name."""
    for host, group in groupby(sorted(senders, key=attrgetter("host")), key=attrgetter("host")):
        same_host = list(group)
        paths = tuple(sender.path or _("its files") for sender in same_host)
        commands = tuple(build_upload_command(pin, sender) for sender in same_host)
        is_polling = all(sender.is_polling for sender in same_host)
        yield PinSource(host or _("the trainer's host"), paths, commands, is_polling)


def build_upload_command(pin: Pin, sender: UploadHost) -> str:
    """The command that uploads the bytes, as the host reported it. Users paste it in a shell, so it is accepted only
    if it is a single call of `rolloutdeck`."""
    try:
        words = shlex.split(sender.command)
    except ValueError:
        words = []
    known = words[:1] == ["rolloutdeck"] and len(words) > 1 and words[1] in UPLOAD_COMMANDS
    if not known or not sender.command.isprintable():
        path, run = sender.path or "PATH", pin.run
        words = ["rolloutdeck", "import", path, "--project", run.project.slug, "--run", run.name]
    return shlex.join(words)


def build_pin_link(pin: Pin, step: Step | None) -> str:
    """The page of the pinned step. Without `step`, the link names the attempt, which may be superseded."""
    params = {"split": pin.split} if pin.split != "train" else {}
    if step is None or step.superseded:
        params["attempt"] = pin.attempt.key
    return reverse("step", args=[pin.run.uid, str(pin.step)]) + ("?" + urlencode(params) if params else "")


def format_pin_name(pin: Pin) -> str:
    if pin.split == "train":
        return _("{run} step {step}").format(run=pin.run.name, step=pin.step)
    return _("{run} {split} step {step}").format(run=pin.run.name, split=pin.split, step=pin.step)


@dataclass(frozen=True, slots=True)
class ReplayLabel:
    """The pin that was replayed, or refused, at a step. `outcome` is `hit` or `refused`; `link` leads to the pinned
    step, if it still exists."""

    outcome: str
    source: str
    link: str
    reason: str

    @property
    def hit(self) -> bool:
        return self.outcome == "hit"

    @property
    def text(self) -> str:
        text = _("↺ replayed: {source}") if self.hit else _("replay refused: {source}")
        return text.format(source=self.source)


def load_replay_labels(steps: Iterable[Step]) -> dict[int, ReplayLabel]:
    """{step id: label}, without steps that were simply generated."""
    train = [step for step in steps if step.split == "train"]
    ids = {(step.run_id, step.attempt_id, step.step_kind, step.step): step.pk for step in train}
    if not ids:
        return {}
    same_step = reduce(
        or_, (Q(run=run, attempt=attempt, step_kind=kind, step=step) for run, attempt, kind, step in ids)
    )
    # Few steps are replayed, so one query for their pins costs less than a join.
    rows = Replay.objects.filter(same_step).exclude(outcome="miss").prefetch_related("pin__run", "pin__attempt")
    return {ids[row.run_id, row.attempt_id, row.step_kind, row.step]: build_replay_label(row) for row in rows}


def build_replay_label(row: Replay) -> ReplayLabel:
    source = format_pin_name(row.pin) if row.pin else _("a removed pin")
    return ReplayLabel(row.outcome, source, build_pin_link(row.pin, None) if row.pin else "", row.reason)
