"""Lists the stored files that rows refer to."""

from collections.abc import Iterator
from dataclasses import dataclass

from rollouts.models import Blob, Dump, Project, Run, Segment
from rollouts.storage import get_blob_key, get_body_key, get_image_prefix, get_raw_dump_key, has_file, list_files

CHUNK_ROWS = 5000


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file that a row refers to. `name` is its key, `kind` the first part of it.

    `sha256` is the hash that its name promises, of the plain bytes; "" for a body file. `bytes` is None if no row
    has the size.
    """

    kind: str
    name: str
    sha256: str = ""
    bytes: int | None = None


def iterate_references(database: str = "default") -> Iterator[FileReference]:
    """Yields each raw dump, body file and artifact file once. `database` is the alias of a connection."""
    uploaded = (
        Dump.objects.using(database)
        .filter(raw_dropped_at=None)
        .exclude(source__startswith=Dump.ARTIFACT_PREFIX)
        .order_by()
    )
    for project, sha256 in uploaded.values_list("run__project", "sha256").distinct().iterator(CHUNK_ROWS):
        yield FileReference("raw", get_raw_dump_key(project, sha256), sha256)
    segments = Segment.objects.using(database).order_by().values_list("path", "bytes")
    for path, size in segments.iterator(CHUNK_ROWS):
        yield FileReference("bodies", get_body_key(path), bytes=size)
    # A row without an artifact is removed by the sweep.
    blobs = Blob.objects.using(database).filter(artifacts__isnull=False).order_by().distinct()
    for project, sha256, size in blobs.values_list("project", "sha256", "bytes").iterator(CHUNK_ROWS):
        yield FileReference("blobs", get_blob_key(project, sha256), sha256, size)


def list_image_owners(database: str = "default") -> list[str]:
    """Returns the owners whose images are kept: all runs and projects."""
    runs = [run.image_owner for run in Run.objects.using(database).only("pk")]
    return [*runs, *(f"project-{pk}" for pk in Project.objects.using(database).values_list("pk", flat=True))]


def list_image_files(database: str = "default") -> Iterator[FileReference]:
    """Yields the images of all runs and projects. Only bodies and findings name them, so the files are listed."""
    for owner in list_image_owners(database):
        for key in sorted(file.key for file in list_files(get_image_prefix(owner))):
            digest = key.rpartition("/")[2]
            if not digest.startswith("."):
                yield FileReference("images", key, digest)


def is_referenced(reference: FileReference) -> bool:
    """Whether a row still refers to the file. Rows and files change while the server runs."""
    match reference.kind:
        case "raw":
            project = int(reference.name.split("/")[1])
            dumps = Dump.objects.filter(run__project=project, sha256=reference.sha256, raw_dropped_at=None)
            return bool(dumps.exclude(source__startswith=Dump.ARTIFACT_PREFIX).exists())
        case "bodies":
            return bool(Segment.objects.filter(path=reference.name.removeprefix("bodies/")).exists())
        case "blobs":
            project = int(reference.name.split("/")[1])
            blobs = Blob.objects.filter(project=project, sha256=reference.sha256, artifacts__isnull=False)
            return bool(blobs.exists())
    return has_file(reference.name)
