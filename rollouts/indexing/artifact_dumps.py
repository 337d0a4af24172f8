"""Creates a dump for each file of an artifact that holds rows. The dump's bytes are the artifact's, not a copy.

A tokenizer has no dumps. When it arrives, the token-only dumps of its run are indexed again and get their text.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath

from django.db.models import Q
from django.utils import timezone

from rolloutdeck.watch import remove_compression_ending
from rollouts.errors import StorageUnavailableError
from rollouts.formats import FORMAT_NAMES, SUMMARY_FORMATS, TOKEN_ONLY_FORMATS, DumpContext, find_artifact_format
from rollouts.indexing.detokenize import build_tokenizer_command, load_tokenizer
from rollouts.ingest import FIRST_SWEEP_DELAY, DumpHeader
from rollouts.models import Artifact, Dump, Step, get_step_position
from rollouts.storage import fetch_blob, has_blob_file

# Dumps that get their text from the tokenizer.
TOKEN_ONLY = Q(source__startswith=Dump.ARTIFACT_PREFIX) | Q(format__in=TOKEN_ONLY_FORMATS - SUMMARY_FORMATS)


def create_artifact_dumps(artifact: Artifact, skip_hashes: Collection[str] = ()) -> list[Dump]:
    """Returns the dumps to index because this artifact was checked. A repeated call returns the same dumps.

    The caller stores the result of the check in the same transaction, so the sweep never has to look for missing dumps.
    """
    if artifact.role == "tokenizer":
        token_dumps = artifact.run.dumps.filter(TOKEN_ONLY)
        token_dumps.requeue(timezone.now() + FIRST_SWEEP_DELAY)
        return list(token_dumps.order_by("step", "pk"))
    formats = {
        path: find_artifact_format(PurePosixPath(path).name) or find_single_file_format(artifact)
        for path, file in sorted(artifact.files.items())
        if file["sha256"] not in skip_hashes
    }
    return [create_dump(artifact, path, format_name) for path, format_name in formats.items() if format_name]


def find_single_file_format(artifact: Artifact) -> str:
    """Returns the format of the only file if it is a trainer's dump and was not uploaded as a dump too, else ""."""
    format_name, hashes = str(artifact.facts.get("format")), [file["sha256"] for file in artifact.files.values()]
    if len(hashes) != 1 or format_name not in FORMAT_NAMES:
        return ""
    uploaded = artifact.run.dumps.filter(sha256=hashes[0]).exclude(source__startswith=Dump.ARTIFACT_PREFIX)
    return "" if uploaded.exists() else format_name


def create_dump(artifact: Artifact, path: str, format_name: str) -> Dump:
    sha256, size = artifact.files[path]["sha256"], artifact.files[path]["bytes"]
    source = f"{Dump.ARTIFACT_PREFIX}{artifact.key}/{path}"[:500]
    header = DumpHeader(artifact.attempt.key, artifact.split, artifact.step, artifact.step_kind, source, format_name)
    due_at = timezone.now() + FIRST_SWEEP_DELAY
    own = {"run": artifact.run, "attempt": artifact.attempt, "sha256": sha256, "bytes": size, "due_at": due_at}
    identity = header.identity(artifact.run, sha256)
    return Dump.objects.get_or_create(identity=identity, defaults={**asdict(header), **own})[0]


def find_missing_tokenizer_command(step: Step) -> str:
    """Returns the command that uploads the run's tokenizer if dumps of the step need it to show or merge their text."""
    if not step.facets.get("no-text") and step.facets.get("tokens", 0) >= step.samples:
        return ""
    token_dumps = Dump.objects.filter(TOKEN_ONLY, **get_step_position(step), state=Dump.State.INDEXED)
    return build_tokenizer_command(step.run) if token_dumps.exists() else ""


def is_artifact_file_missing(dump: Dump) -> bool:
    """Whether the dump's bytes were removed with its artifact. The sample bodies made of them remain."""
    return dump.is_from_artifact and not has_blob_file(dump.run.project_id, dump.sha256)


def build_dump_context(dump: Dump) -> DumpContext:
    """Returns what a format needs besides the bytes, from the dump's row, its artifact and the run's tokenizer.

    Needs `dump.format`. Raises StorageUnavailableError if the artifact is gone.
    """
    needs_tokenizer = dump.is_from_artifact or dump.format in TOKEN_ONLY_FORMATS
    tokenizer = load_tokenizer(dump.run) if needs_tokenizer else None
    decode = tokenizer.decode_rows if tokenizer else None
    name = remove_compression_ending(dump.source)
    context = DumpContext(name, dump.split, dump.step, dump.step_kind, dump.columns, decode_tokens=decode)
    if not dump.is_from_artifact:
        return context
    key, _, path = dump.source.removeprefix(Dump.ARTIFACT_PREFIX).partition("/")
    artifact = Artifact.objects.filter(run=dump.run_id, key=key).first()
    if artifact is None:
        message = f"The artifact {key[:12]} of dump {dump.pk} does not exist any more."
        raise StorageUnavailableError(message) from FileNotFoundError(key)
    project, folder = dump.run.project_id, PurePosixPath(path).parent
    siblings = {
        PurePosixPath(other).name: file["sha256"]
        for other, file in artifact.files.items()
        if PurePosixPath(other).parent == folder and other != path
    }
    paths, blob = SiblingPaths(project, siblings), fetch_readable_blob(project, dump.sha256)
    return replace(context, filename=path, path=blob, sibling_paths=paths, facts=artifact.facts)


class SiblingPaths(Mapping[str, Path]):
    """The paths of files by name. A file of a bucket is downloaded when it is asked for."""

    def __init__(self, project: int, hashes: dict[str, str]) -> None:
        self.project, self.hashes = project, hashes

    def __getitem__(self, name: str) -> Path:
        return fetch_readable_blob(self.project, self.hashes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.hashes)

    def __len__(self) -> int:
        return len(self.hashes)


def fetch_readable_blob(project: int, sha256: str) -> Path:
    """Raises StorageUnavailableError."""
    try:
        return fetch_blob(project, sha256)
    except OSError as error:
        raise StorageUnavailableError(f"The bytes of file {sha256[:12]} cannot be read: {error.strerror}.") from error
