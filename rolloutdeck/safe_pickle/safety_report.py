"""The safety report of a file that a trainer would unpickle: can our reader read it, and may a trainer load it.

*Readable*: our reader can read the batch, but single values may be unreadable. *Loadable*: torch, numpy, verl and ROLL
build only arrays and plain values from its bytes. The check does not load the file and executes none of its bytes. It
reads only the opcodes and the ZIP's headers, whatever the size of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from rolloutdeck.safe_pickle import verify
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSource, TorchArchive, is_zip


@dataclass(frozen=True)
class SafetyReport:
    """`format`: `gen_batch` (also RolloutSkip's single file), `tq_batch`, `new_batch`, `roll-mock`, `torch` (any other
    file of torch.save), `unknown`. `reasons` are sentences for the user that say why the file is not loadable. They are
    empty if it is.
    """

    readable: bool
    loadable: bool
    reasons: tuple[str, ...]
    format: str


def check_file_safety(path: str | os.PathLike[str]) -> SafetyReport:
    """Returns the safety report of a file. Raises OSError."""
    with ByteSource.open(path) as source:
        return check_source_safety(source)


def check_source_safety(source: ByteSource) -> SafetyReport:
    """Returns the safety report of bytes that are already open."""
    try:
        return _check_archive(source) if is_zip(source) else _check_pickle(source)
    except SafePickleError as error:
        return _build_report(False, [str(error)], "unknown")


def _build_report(readable: bool, reasons: Iterable[str], format: str) -> SafetyReport:
    sentences = tuple(f"{reason}." for reason in reasons)
    return SafetyReport(readable, not sentences, sentences, format)


def _check_archive(source: ByteSource) -> SafetyReport:
    archive = TorchArchive.open(source)
    verifier = verify.PickleVerifier(archive.pickle, archive)
    value = verifier.verify()
    readable = not (isinstance(value, verify.AbstractObject) and value.kind == "unknown")
    return _build_report(readable, verifier.reasons, "tq_batch" if _is_queue_batch(value) else "torch")


def _is_queue_batch(value: verify.AbstractValue) -> bool:
    """Whether it is what RolloutTqSkip saves: {tensordict, tags, keys, global_steps}."""
    try:
        fields = value.fields() if isinstance(value, verify.AbstractContainer) else {}
    except verify.RuleViolationError:
        return False
    has_keys = isinstance(fields.get("keys"), verify.AbstractContainer)
    return has_keys and isinstance(fields.get("tensordict"), verify.AbstractObject)


def _check_pickle(source: ByteSource) -> SafetyReport:
    verifier = verify.PickleVerifier(source)
    value = verifier.verify()
    is_object = isinstance(value, verify.AbstractObject) and value.kind in ("batch", "rollout")
    if not is_object or "batch" not in value.facts:
        verifier.add_reason("it does not contain a batch of verl or ROLL")
        return _build_report(False, verifier.reasons, "unknown")
    verl_format = "new_batch" if value.facts["batch"] is None else "gen_batch"
    return _build_report(True, verifier.reasons, "roll-mock" if value.kind == "rollout" else verl_format)
