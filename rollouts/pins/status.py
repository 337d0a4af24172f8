"""The status of a pin: how many of its bytes are uploaded, and which hosts have the others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Prefetch
from django.utils import timezone

from rollouts.models import Artifact, Pin, Run
from rollouts.pins import artifacts
from rollouts.pins.file_requests import find_last_poll

POLL_TIMEOUT = timedelta(seconds=60)  # a running sender polls twice in this time
ORIGIN_FIELDS = ("host", "path", "command")  # of `Artifact.origin`, in the order of `UploadHost`
State = Artifact.State


@dataclass(frozen=True, slots=True)
class UploadHost:
    """A host that has missing bytes, and the command that uploads them. `asked_at` is the time of its last poll."""

    host: str
    path: str
    command: str
    asked_at: datetime | None

    @property
    def is_polling(self) -> bool:
        """Whether the host polled within the last minute. Otherwise the user should run `command` there."""
        return self.asked_at is not None and timezone.now() - self.asked_at <= POLL_TIMEOUT


@dataclass(frozen=True, slots=True)
class PinStatus:
    """How complete a pin is: `received` of `bytes` are uploaded.

    If each prompt has its own files, `available` of `prompts` have usable files, and `prompts` is not None.
    `messages`: why artifacts are unsafe or gone, each reason once. `senders` are the hosts that have the missing bytes.
    """

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


def load_pin_status(pin: Pin) -> PinStatus:
    return load_pin_statuses([pin])[pin.pk]


def load_pin_statuses(pins: Sequence[Pin]) -> dict[int, PinStatus]:
    """Returns the status of several pins by their ids."""
    ids = [pin.pk for pin in pins]
    with_blobs = artifacts.prefetch_blobs(Artifact.objects.order_by("step", "pk"))
    rows = Pin.objects.filter(pk__in=ids).select_related("run").prefetch_related(Prefetch("artifacts", with_blobs))
    return {pin.pk: build_pin_status(pin, tuple(pin.artifacts.all())) for pin in rows}


def build_pin_status(pin: Pin, pinned: tuple[Artifact, ...]) -> PinStatus:
    usable = [artifact for artifact in pinned if artifact.state not in (State.GONE, State.UNSAFE)]
    return PinStatus(
        state=combine_states(pinned),
        received=sum(artifacts.count_received_bytes(artifact) for artifact in usable),
        bytes=sum(artifact.bytes for artifact in usable),
        artifacts=pinned,
        available=len(usable),
        prompts=pin.prompts,
        messages=tuple(dict.fromkeys(artifact.message for artifact in pinned if artifact.message)),
        senders=find_senders(pin.run, [artifact for artifact in pinned if artifact.pending and artifact.missing]),
    )


def combine_states(pinned: Sequence[Artifact]) -> str:
    """Returns the state of a pin: uploading if one artifact uploads, or one waits and another is ready; else waiting,
    ready, unsafe or gone, the first of these that an artifact has."""
    states = {artifact.state for artifact in pinned}
    if State.UPLOADING in states or {State.WAITING, State.READY} <= states:
        return State.UPLOADING
    return next((state for state in (State.WAITING, State.READY, State.UNSAFE) if state in states), State.GONE)


def find_senders(run: Run, waiting: Iterable[Artifact]) -> tuple[UploadHost, ...]:
    origins = sorted({tuple(artifact.origin.get(name, "") for name in ORIGIN_FIELDS) for artifact in waiting})
    return tuple(UploadHost(host, path, command, find_last_poll(run, host)) for host, path, command in origins)
