"""Pins as pages show them: how far the bytes have come, and what would send them where nobody asks."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from rollouts.models import Pin, Project, Step
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


@dataclass(frozen=True, slots=True)
class PinSource:
    """A machine that has bytes which are not here. `quiet`: it has not asked for a minute."""

    host: str
    paths: tuple[str, ...]
    commands: tuple[str, ...]
    quiet: bool

    @property
    def shown(self) -> str:
        more = len(self.paths) - 1
        if not more:
            return self.paths[0]
        said = ngettext("{path} and {count} other folder", "{path} and {count} other folders", more)
        return said.format(path=self.paths[0], count=more)

    @property
    def lines(self) -> str:
        more = len(self.commands) - MAX_COMMANDS
        return "\n".join(self.commands[:MAX_COMMANDS]) + (f"\n# and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class PinStatusLabel:
    """`word` is `waiting uploading ready unsafe gone`; `share` is per cent of the bytes, of an upload."""

    word: str
    share: int | None = None
    message: str = ""
    prompts: str = ""
    places: tuple[PinSource, ...] = ()

    @property
    def called(self) -> str:
        return _(PIN_STATE_NAMES[self.word])

    @property
    def said(self) -> str:
        return self.called if self.share is None else f"{self.called} {self.share} %"


@dataclass(slots=True)
class PinRow:
    pin: Pin
    step: Step | None
    state: PinStatusLabel
    bytes: int
    link: str
    targets: list[int] = field(default_factory=list)


def load_pin_rows(project: Project, targets: dict[int, list[int]]) -> list[PinRow]:
    """The project's pins, newest first; `targets` by pin."""
    found = project.pins.filter(removed_at=None, run__deleted_at=None).order_by("-created_at", "-pk")
    return build_pin_rows(list(found.select_related("run__project", "attempt", "user")), targets)


def build_pin_rows(found: Sequence[Pin], targets: dict[int, list[int]]) -> list[PinRow]:
    steps, standing = steps_of(found), load_pin_statuses(found)
    return [build_pin_row(pin, steps.get(key(pin)), standing[pin.pk], targets.get(pin.pk, [])) for pin in found]


def build_pin_row(pin: Pin, step: Step | None, standing: PinStatus, targets: list[int]) -> PinRow:
    size = sum(one.bytes for one in standing.artifacts)
    return PinRow(pin, step, build_pin_status_label(pin, standing), size, build_pin_link(pin, step), targets)


def build_pin_status_label(pin: Pin, standing: PinStatus) -> PinStatusLabel:
    return PinStatusLabel(
        word=standing.state,
        share=standing.percent if standing.state == "uploading" else None,
        message=" ".join(standing.messages),
        prompts=format_available_prompts(standing),
        places=tuple(build_pin_sources(pin, standing.senders)),
    )


def format_available_prompts(standing: PinStatus) -> str:
    if standing.prompts is None:
        return ""
    said = _("{available} of {prompts} prompts available")
    return said.format(available=standing.available, prompts=standing.prompts)


def build_pin_sources(pin: Pin, senders: Iterable[UploadHost]) -> Iterable[PinSource]:
    """One for each machine, in order of their names."""
    for host, found in groupby(sorted(senders, key=lambda one: one.host), key=lambda one: one.host):
        here = list(found)
        paths = tuple(one.path or _("its files") for one in here)
        commands = tuple(build_upload_command(pin, one) for one in here)
        yield PinSource(host or _("the trainer's host"), paths, commands, any(one.is_silent for one in here))


def build_upload_command(pin: Pin, sender: UploadHost) -> str:
    """What its machine says would send the bytes; nothing but one call of ours, since a person pastes it in a shell."""
    try:
        words = shlex.split(sender.command)
    except ValueError:
        words = []
    if (
        words[:1] != ["rolloutdeck"]
        or words[1:2] not in [[word] for word in UPLOAD_COMMANDS]
        or not sender.command.isprintable()
    ):
        path, run = sender.path or "PATH", pin.run
        words = ["rolloutdeck", "import", path, "--project", run.project.slug, "--run", run.name]
    return shlex.join(words)


def key(one: Pin | Step) -> tuple[int, int, str, str, int]:
    return one.run_id, one.attempt_id, one.split, one.step_kind, one.step


def steps_of(found: Sequence[Pin]) -> dict[tuple[int, int, str, str, int], Step]:
    steps = Step.objects.filter(run__in={pin.run_id for pin in found}, step__in={pin.step for pin in found})
    return {key(step): step for step in steps}


def build_pin_link(pin: Pin, step: Step | None) -> str:
    """The page of the pinned step."""
    told = {"split": pin.split} if pin.split != "train" else {}
    if step is not None and step.superseded:
        told["attempt"] = pin.attempt.key
    return reverse("step", args=[pin.run.uid, str(pin.step)]) + ("?" + urlencode(told) if told else "")


def format_pin_name(pin: Pin) -> str:
    """As sentences call it."""
    if pin.split == "train":
        return _("{run} step {step}").format(run=pin.run.name, step=pin.step)
    return _("{run} {split} step {step}").format(run=pin.run.name, split=pin.split, step=pin.step)
