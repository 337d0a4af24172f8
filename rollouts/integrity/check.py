"""Compares rows and stored files in both directions, and verifies the bytes of a sample of the files.

Works while the server runs. Rows are read before the files that they refer to, and a problem counts only if the row
still refers to the file afterwards. Folders are listed before the rows are read, and recent files are skipped.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from django.db.models import F, Q

from rollouts.integrity.files import RateLimit, find_damage
from rollouts.integrity.references import FileReference, is_referenced, iterate_references, list_image_owners
from rollouts.models import Dump, Segment
from rollouts.storage import KINDS, StoredFile, find_file, has_file, list_files

GRACE_SECONDS = 3 * 3600.0  # the server removes files without a row itself, one to two hours after their last use
Progress = Callable[[int, int, int], None]  # files done, files in total, bytes read


@dataclass(frozen=True, slots=True)
class Problem:
    """`problem` is missing, damaged, orphan or bodyless (an indexed dump whose samples have no body file)."""

    problem: str
    kind: str
    name: str
    detail: str = ""
    sha256: str = ""


@dataclass(slots=True)
class KindCount:
    """What was checked of one kind of files."""

    files: int = 0
    bytes: int = 0
    verified: int = 0


@dataclass(slots=True)
class CheckResult:
    """All problems, and what was checked of each kind."""

    counts: dict[str, KindCount] = field(default_factory=lambda: {kind: KindCount() for kind in KINDS})
    problems: list[Problem] = field(default_factory=list)

    def count(self, kind: str, problem: str) -> int:
        return sum(found.kind == kind and found.problem == problem for found in self.problems)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """`sample` is the share of the files whose bytes are verified, from 0 to 1. `rate` is in bytes per second."""

    sample: float = 1.0
    rate: float | None = None
    grace: float = GRACE_SECONDS
    seed: int | None = None


def check_integrity(options: CheckOptions, progress: Progress = lambda *_: None) -> CheckResult:
    """Finds every row without its file, file without a row, and, of the verified files, every damaged one."""
    result = CheckResult()
    files = {file.key: file for file in list_files()}  # before the rows
    listed = select_old_files(files.values(), options.grace)
    references = list(iterate_references())
    chance, limit = random.Random(options.seed), RateLimit(options.rate)
    images = list(list_images(listed))
    for done, reference in enumerate([*references, *images]):
        progress(done, len(references) + len(images), limit.count)
        verify = options.sample >= 1 or chance.random() < options.sample
        check_reference(reference, files.get(reference.name), verify, limit, result)
    result.problems += find_orphans(listed, {reference.name for reference in references})
    result.problems += find_bodyless_dumps()
    return result


def check_reference(
    reference: FileReference, listed: StoredFile | None, verify: bool, limit: RateLimit, result: CheckResult
) -> None:
    """`listed` is None if the file was not there a moment ago."""
    count = result.counts[reference.kind]
    file = listed or find_file(reference.name)
    size = file.bytes if file else None
    problem = detail = ""
    if size is None:
        problem = "missing"
    elif reference.bytes is not None and size != reference.bytes:
        problem, detail = "damaged", f"it has {size:,} bytes instead of {reference.bytes:,}"
    elif verify:
        count.verified += 1
        try:
            detail = find_damage(reference, find_row_count(reference), limit)
            problem = "damaged" if detail else ""
        except FileNotFoundError:
            problem = "missing"
    count.files += 1
    count.bytes += size or 0
    if problem and is_referenced(reference):
        result.problems.append(Problem(problem, reference.kind, reference.name, detail, reference.sha256))


def find_row_count(reference: FileReference) -> int | None:
    if reference.kind != "bodies":
        return None
    rows: int | None = (
        Segment.objects.filter(path=get_segment_path(reference.name)).values_list("rows", flat=True).first()
    )
    return rows


def get_segment_path(name: str) -> str:
    """Returns `Segment.path` of a body file's key."""
    return name.removeprefix("bodies/")


def select_old_files(files: Iterable[StoredFile], grace: float) -> list[str]:
    """Returns the keys of the files that are older than `grace` seconds."""
    newest = time.time() - grace
    return [file.key for file in files if file.modified_at <= newest]


def list_images(listed: list[str]) -> Iterator[FileReference]:
    """Yields the images among the listed files that belong to a run or a project."""
    owners = set(list_image_owners())
    for name in listed:
        parts = name.split("/")
        if parts[0] == "images" and len(parts) == 4 and parts[1] in owners and not parts[3].startswith("."):
            yield FileReference("images", name, parts[3])


def find_orphans(listed: list[str], referenced: set[str]) -> Iterator[Problem]:
    owned = {image.name for image in list_images(listed)}
    for name in listed:
        kind = name.split("/")[0]
        if name not in referenced and name not in owned and has_file(name):
            yield Problem("orphan", kind, name)


def find_bodyless_dumps() -> Iterator[Problem]:
    """Yields the indexed dumps whose samples refer to rows of no body file, or to rows that it does not have."""
    indexed = Dump.objects.filter(state__in=[Dump.State.INDEXED, Dump.State.SUPERSEDED], samples__isnull=False)
    is_outside = Q(segment_offset__gt=F("segment__rows") - F("rows"))
    for pk in indexed.filter(Q(segment=None) | is_outside).order_by().values_list("pk", flat=True).distinct():
        yield Problem("bodyless", "bodies", f"dump {pk}", "its samples are in no body file")
