"""The two verdicts on a file that a trainer would unpickle: may we read it, and may a trainer load it.

*Readable*: our reader can take the batch from it, though single values may stay unread. *Loadable*: whatever torch,
numpy, verl and ROLL do with its bytes, they build arrays and plain values and nothing else. The file is not loaded for
that, none of its bytes is executed, and of a file of any size only the opcodes and the ZIP's headers are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSource, TorchArchive, is_zip
from rolloutdeck.safe_pickle.verify import (
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    PickleVerifier,
    RuleViolationError,
)


@dataclass(frozen=True)
class SafetyReport:
    """`format`: `gen_batch` (also RolloutSkip's single file), `tq_batch`, `new_batch`, `roll-mock`, `torch` (any other
    file of torch.save), `unknown`. `reasons` say why it is not loadable, in words for a person; none when it is.
    """

    readable: bool
    loadable: bool
    reasons: tuple[str, ...]
    format: str


def check_file_safety(path: str | os.PathLike[str]) -> SafetyReport:
    """Raises OSError."""
    with ByteSource.open(path) as source:
        return check_source_safety(source)


def check_source_safety(source: ByteSource) -> SafetyReport:
    """The verdict on bytes that are open already."""
    try:
        return _archive(source) if is_zip(source) else _pickle(source)
    except SafePickleError as refused:
        return SafetyReport(False, False, _sentences([str(refused)]), "unknown")


def _sentences(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{reason}." for reason in reasons)


def _archive(source: ByteSource) -> SafetyReport:
    archive = TorchArchive.open(source)
    judge = PickleVerifier(archive.pickle, archive)
    root = judge.root()
    reasons = _sentences(judge.reasons)
    readable = not (isinstance(root, AbstractObject) and root.kind == "unknown")
    return SafetyReport(readable, not reasons, reasons, "tq_batch" if _is_queue(root) else "torch")


def _is_queue(root: AbstractValue) -> bool:
    """What RolloutTqSkip saves: {tensordict, tags, keys, global_steps}."""
    try:
        names = root.fields() if isinstance(root, AbstractContainer) else {}
    except RuleViolationError:
        return False
    return isinstance(names.get("tensordict"), AbstractObject) and isinstance(names.get("keys"), AbstractContainer)


def _pickle(source: ByteSource) -> SafetyReport:
    judge = PickleVerifier(source)
    root = judge.root()
    known = isinstance(root, AbstractObject) and root.kind in ("batch", "rollout") and "batch" in root.facts
    if not known:
        judge.object("it holds no batch of verl or ROLL")
        return SafetyReport(False, False, _sentences(judge.reasons), "unknown")
    reasons = _sentences(judge.reasons)
    return SafetyReport(True, not reasons, reasons, _format(root))


def _format(root: AbstractObject) -> str:
    if root.kind == "rollout":
        return "roll-mock"
    return "new_batch" if root.facts["batch"] is None else "gen_batch"
