"""The status of a pin: how far its bytes have come, and which nodes have the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Prefetch
from django.utils import timezone

from rollouts.models import Artifact, Pin, Run
from rollouts.pins import artifacts
from rollouts.pins.artifacts import MAX_ORIGIN_CHARS

QUIET = timedelta(seconds=60)  # a sender that lives polls twice in this time
State = Artifact.State


@dataclass(frozen=True, slots=True)
class UploadHost:
    """A node that has bytes which are not here, and what would send them. `asked_at`: its last poll."""

    host: str
    path: str
    command: str
    asked_at: datetime | None

    @property
    def quiet(self) -> bool:
        """Whether it has not asked for a minute, so that somebody should run `command` there."""
        return self.asked_at is None or timezone.now() - self.asked_at > QUIET


@dataclass(frozen=True, slots=True)
class PinStatus:
    """How far a pin's bytes are. `received` of `bytes`; `available` of `prompts`: those whose files are known and not
    gone, where each prompt has its own. `messages` says why some are unsafe or gone; `senders` who has the others."""

    state: str
    received: int
    bytes: int
    artifacts: tuple[Artifact, ...]
    available: int
    prompts: int | None
    messages: tuple[str, ...]
    senders: tuple[UploadHost, ...]

    @property
    def percent(self) -> int:
        return 100 * self.received // self.bytes if self.bytes else 100


def load_pin_status(row: Pin) -> PinStatus:
    return load_pin_statuses([row])[row.pk]


def load_pin_statuses(rows: Sequence[Pin]) -> dict[int, PinStatus]:
    """Of several pins, by their ids."""
    ids = [row.pk for row in rows]
    held = artifacts.prefetch_blobs(Artifact.objects.order_by("step", "pk"))
    found = Pin.objects.filter(pk__in=ids).select_related("run").prefetch_related(Prefetch("artifacts", held))
    return {row.pk: build_pin_status(row, tuple(row.artifacts.all())) for row in found}


def build_pin_status(row: Pin, held: tuple[Artifact, ...]) -> PinStatus:
    usable = [one for one in held if one.state not in (State.GONE, State.UNSAFE)]
    return PinStatus(
        state=combined_state(held),
        received=sum(artifacts.count_received_bytes(one) for one in usable),
        bytes=sum(one.bytes for one in usable),
        artifacts=held,
        available=len(usable),
        prompts=row.prompts,
        messages=tuple(dict.fromkeys(one.message for one in held if one.message)),
        senders=find_senders(row.run, [one for one in held if one.pending and one.missing]),
    )


def combined_state(held: Sequence[Artifact]) -> str:
    """Of many artifacts: what is still to come counts first, then what can be used, then what is wrong."""
    states = {one.state for one in held}
    if states == {State.WAITING}:
        return State.WAITING
    if states & {State.WAITING, State.UPLOADING}:
        return State.UPLOADING
    return next((state for state in (State.READY, State.UNSAFE) if state in states), State.GONE)


def find_senders(run: Run, waiting: Iterable[Artifact]) -> tuple[UploadHost, ...]:
    places = sorted({tuple(one.origin.get(name, "") for name in MAX_ORIGIN_CHARS) for one in waiting})
    return tuple(UploadHost(host, path, command, artifacts.find_last_poll(run, host)) for host, path, command in places)
