"""What an artifact tells of its step: each batch in it becomes a dump whose bytes are the artifact's, not a copy.

A tokenizer makes none; it gives the batches of its run their text, so they are indexed again when it comes.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import PurePosixPath

from django.db.models import Case, F, Q, When
from django.utils import timezone

from rolloutdeck.watch import remove_compression_ending
from rollouts.errors import StorageUnavailableError
from rollouts.formats import FORMAT_NAMES, TOKEN_ONLY_FORMATS, DumpContext, find_artifact_format
from rollouts.indexing import detokenize
from rollouts.ingest import FIRST_SWEEP_DELAY, DumpHeader
from rollouts.models import Artifact, Dump, Run, Step
from rollouts.storage import get_blob_path

TOKENIZER = "tokenizer"
TOKENS_ONLY = Q(source__startswith=Dump.ARTIFACT_PREFIX) | Q(
    format__in=TOKEN_ONLY_FORMATS
)  # dumps that a tokenizer gives their text


def create_artifact_dumps(artifact: Artifact) -> list[Dump]:
    """The dumps that a worker should now index because this artifact is ready; called twice, they are the same.

    In the transaction that makes it ready, so that no sweep has to look for what was left out.
    """
    if artifact.role == TOKENIZER:
        return read_again(artifact.run)
    return [dump_of(artifact, path, form) for path, form in batches(artifact)]


def batches(artifact: Artifact) -> list[tuple[str, str]]:
    """(path, format) of the files that hold rows."""
    formats = {
        path: find_artifact_format(PurePosixPath(path).name) or alone(artifact) for path in sorted(artifact.files)
    }
    return [(path, form) for path, form in formats.items() if form]


def alone(artifact: Artifact) -> str:
    """The format of the only file, where that is a dump as trainers write them; "" where it came as such already."""
    form, files = str(artifact.facts.get("format")), [file["sha256"] for file in artifact.files.values()]
    if len(files) != 1 or form not in FORMAT_NAMES:
        return ""
    came = artifact.run.dumps.filter(sha256=files[0]).exclude(source__startswith=Dump.ARTIFACT_PREFIX)
    return "" if came.exists() else form


def dump_of(artifact: Artifact, path: str, form: str) -> Dump:
    sha256 = artifact.files[path]["sha256"]
    header = DumpHeader(
        attempt=artifact.attempt.key,
        split=artifact.split,
        step=artifact.step,
        step_kind=artifact.step_kind,
        source=f"{Dump.ARTIFACT_PREFIX}{artifact.key}/{path}"[:500],
        format=form,
    )
    fields = {name: value for name, value in asdict(header).items() if name != "attempt"}
    dump, _ = Dump.objects.get_or_create(
        identity=header.identity(artifact.run, sha256),
        defaults={
            **fields,
            "run": artifact.run,
            "attempt": artifact.attempt,
            "sha256": sha256,
            "bytes": artifact.files[path]["bytes"],
            "due_at": timezone.now() + FIRST_SWEEP_DELAY,
        },
    )
    return dump


def read_again(run: Run) -> list[Dump]:
    """Puts the run's batches back in the queue; ids of samples that have text stay."""
    made = run.dumps.filter(TOKENS_ONLY)
    # The tries of a claim go on: its worker must not take the next claim for its own.
    made.update(
        state=Dump.State.RECEIVED,
        tries=Case(When(state=Dump.State.INDEXING, then=F("tries")), default=0),
        message="",
        due_at=timezone.now() + FIRST_SWEEP_DELAY,
    )
    return list(made.order_by("step", "pk"))


def find_missing_tokenizer_command(step: Step) -> str:
    """The command that would bring a tokenizer, where a batch of the step can't show its text, or join, without."""
    if not step.facets.get("no-text") and step.facets.get("tokens", 0) >= step.samples:
        return ""
    same = {name: getattr(step, name) for name in ("run_id", "attempt_id", "split", "step_kind", "step")}
    made = Dump.objects.filter(TOKENS_ONLY, **same, state=Dump.State.INDEXED)
    return detokenize.build_tokenizer_command(step.run) if made.exists() else ""


def is_artifact_dump(dump: Dump) -> bool:
    return dump.source.startswith(Dump.ARTIFACT_PREFIX)


def is_artifact_file_missing(dump: Dump) -> bool:
    """Whether its bytes were removed since: artifacts are not kept for ever, what they told of a step is."""
    return is_artifact_dump(dump) and not get_blob_path(dump.run.project_id, dump.sha256).exists()


def build_dump_context(dump: Dump) -> DumpContext:
    """Returns what a format needs besides the bytes: the dump's row, and what its artifact and the run's tokenizer add.

    Needs `dump.format`. Raises StorageUnavailableError if the artifact is gone.
    """
    tokenizer = (
        detokenize.load_tokenizer(dump.run) if is_artifact_dump(dump) or dump.format in TOKEN_ONLY_FORMATS else None
    )
    context = DumpContext(
        remove_compression_ending(dump.source),
        dump.split,
        dump.step,
        dump.step_kind,
        dump.columns,
        decode_tokens=tokenizer.texts if tokenizer else None,
    )
    if not is_artifact_dump(dump):
        return context
    key, _, path = dump.source.removeprefix(Dump.ARTIFACT_PREFIX).partition("/")
    artifact = Artifact.objects.filter(run=dump.run_id, key=key).first()
    if artifact is None:
        raise StorageUnavailableError(f"The artifact {key[:12]} that dump {dump.pk} was made of is not there.")
    folder = PurePosixPath(path).parent
    sibling_paths = {
        PurePosixPath(other).name: get_blob_path(dump.run.project_id, file["sha256"])
        for other, file in artifact.files.items()
        if PurePosixPath(other).parent == folder and other != path
    }
    return replace(
        context,
        filename=path,
        path=get_blob_path(dump.run.project_id, dump.sha256),
        sibling_paths=sibling_paths,
        facts=artifact.facts,
    )
