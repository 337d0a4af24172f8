"""Imports rows of labels into a project: finds their samples, checks their answers and merges them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.label_import.candidates import STEPS_PER_QUERY, CandidateSample, join, split
from rollouts.label_import.rows import FIELDS, ImportedLabel, SampleClaims, parse_row
from rollouts.label_import.samples import Match, SampleFinder
from rollouts.labels import (
    PAIR_QUESTIONS,
    Answer,
    DatedAnswer,
    MergeOutcome,
    find_blind_samples,
    merge_labels,
)
from rollouts.models import Label, Project, Run, Sample
from rollouts.projects import record_audit_entry
from rollouts.samples import load_contents

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_IMPORT_ROWS: Final = 2_000  # at once
MAX_LISTED_NAMES: Final = 20
PROBLEM_FIELD: Final = "problem"  # in a file of rows that were not imported


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """`run`: of rows that name none, or one that the project does not have. `all_matches`: a row labels all samples
    that it matches, not only a single one. `any_author`: rows may have labels of other people. `time`: of rows without
    one. `file` is for the audit log."""

    run: Run | None = None
    all_matches: bool = False
    any_author: bool = False
    dry_run: bool = False
    time: datetime | None = None
    file: str = ""


@dataclass(frozen=True, slots=True)
class ImportProblem:
    """Why a row is not imported. `kind` is unmatched, ambiguous, invalid, forbidden or older."""

    row: int
    kind: str
    message: str


@dataclass(slots=True)
class ImportResult:
    """`labels` counts outcomes: new, changed, unchanged. `matched` counts rows by the way their sample was found."""

    labels: Counter[str] = field(default_factory=Counter)
    matched: Counter[str] = field(default_factory=Counter)
    problems: list[ImportProblem] = field(default_factory=list)
    unused_fields: set[str] = field(default_factory=set)

    def add_problem(self, row: int, kind: str, message: str) -> None:
        self.problems.append(ImportProblem(row, kind, message))


def import_rows(project: Project, by: User, rows: Sequence[Any], options: ImportOptions) -> ImportResult:
    """Imports rows of a file. A row that cannot be imported costs only itself. The caller has checked that `by` may
    annotate, and `any_author`. Raises InvalidInputError if there are too many, and StorageUnavailableError."""
    if len(rows) > MAX_IMPORT_ROWS:
        message = _("At most {limit} rows can be imported at once, not {count}.")
        raise InvalidInputError(message.format(limit=f"{MAX_IMPORT_ROWS:,}", count=f"{len(rows):,}"), "rows")
    now = timezone.now()
    result = ImportResult()
    parsed = parse_rows(rows, by, options, result, now)
    finder = SampleFinder(project, options.run, options.all_matches)
    matches = finder.find({row: claims for row, (claims, _label) in parsed.items()})
    time = min(options.time or now, now)
    answers = [
        (row, candidate, build_answer(parsed[row][1], candidate, time))
        for row, match in matches.items()
        for candidate in list_samples(row, match, result)
    ]
    answers = leave_out_blind_items(by, answers, result)
    answers = resolve_named_samples(project, answers, result)
    dated = [answer for _row, _candidate, answer in answers]
    merged = merge_labels(project, by, dated, any_author=options.any_author, dry_run=options.dry_run)
    for (row, _candidate, _answer), outcome in zip(answers, merged, strict=True):
        if outcome.outcome == MergeOutcome.INVALID:
            result.add_problem(row, "invalid", outcome.problem)
        elif outcome.outcome == MergeOutcome.OLDER:
            result.add_problem(row, "older", _("A label of this author is newer, or as new with another value."))
        else:
            result.labels[outcome.outcome.value] += 1
    result.problems.sort(key=lambda problem: problem.row)
    if not options.dry_run and (result.labels["new"] or result.labels["changed"]):
        record_import(project, by, dated, result, options)
    return result


def parse_rows(
    rows: Sequence[Any], by: User, options: ImportOptions, result: ImportResult, now: datetime
) -> dict[int, tuple[SampleClaims, ImportedLabel]]:
    """Returns the valid rows by position."""
    parsed = {}
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            result.add_problem(position, "invalid", _("The row is not an object."))
            continue
        result.unused_fields |= {str(name)[:40] for name in row if name not in FIELDS and name != PROBLEM_FIELD}
        try:
            claims, label = parse_row(row, now)
        except InvalidInputError as error:
            result.add_problem(position, "invalid", str(error))
            continue
        is_human = label.source == Label.Source.HUMAN
        if is_human and not options.any_author and label.author not in ("", by.get_username()):
            message = _("Only a maintainer of the project can import labels of other people.")
            result.add_problem(position, "forbidden", message)
            continue
        parsed[position] = claims, label
    return parsed


def list_samples(row: int, match: Match, result: ImportResult) -> Iterable[CandidateSample]:
    if match.samples and match.by:
        result.matched[match.by.value] += 1
    else:
        result.add_problem(row, "ambiguous" if match.is_ambiguous else "unmatched", match.problem)
    return match.samples


def build_answer(label: ImportedLabel, candidate: CandidateSample, time: datetime) -> DatedAnswer:
    answer = Answer(
        sample=candidate.pk, name=label.name, value=label.value, rationale=label.rationale, source=label.source,
        author=label.author, start=label.start, end=label.end,
    )  # fmt: skip
    updated_at = label.updated_at or time
    is_exact = label.updated_at is not None
    return DatedAnswer(answer, label.created_at or updated_at, updated_at, label.rubric, is_exact)


ImportedAnswer = tuple[int, CandidateSample, DatedAnswer]


def leave_out_blind_items(by: User, answers: Sequence[ImportedAnswer], result: ImportResult) -> list[ImportedAnswer]:
    """Leaves out labels of functions and models of items that `by` reviews blindly: what becomes of such a row says
    whether the stored label has its value."""
    machine = {candidate.pk for _row, candidate, dated in answers if dated.answer.source != Label.Source.HUMAN}
    hidden = find_blind_samples(by, machine) if machine else set()
    kept = []
    for row, candidate, dated in answers:
        if candidate.pk in hidden and dated.answer.source != Label.Source.HUMAN:
            message = _("You review this sample blindly, so you cannot import labels of functions or models for it.")
            result.add_problem(row, "forbidden", message)
        else:
            kept.append((row, candidate, dated))
    return kept


def resolve_named_samples(
    project: Project, answers: Sequence[ImportedAnswer], result: ImportResult
) -> list[ImportedAnswer]:
    """Replaces content keys in answers that name other samples of the group by the ids of this server. Leaves out
    answers whose samples are not here."""
    naming = [entry for entry in answers if entry[2].answer.name in PAIR_QUESTIONS]
    if not naming:
        return list(answers)
    named = {name for _row, _candidate, dated in naming for name in list_names(dated.answer.value)}
    storable = [name for name in named if name.isascii() and name.isprintable()]  # no database has other ids
    known = set(Sample.objects.filter(pk__among=storable, step__run__project=project).values_list("pk", flat=True))
    by_key: dict[tuple[int, str, str], str] = {}
    if named - known:
        by_key = load_group_keys({candidate for _row, candidate, _dated in naming})
    resolved = []
    for row, candidate, dated in answers:
        value = dated.answer.value
        if dated.answer.name in PAIR_QUESTIONS:
            place = (candidate.step.pk, candidate.group)
            value = [name if name in known else by_key.get((*place, name)) for name in list_names(value)]
            if None in value:
                result.add_problem(row, "unmatched", _("The value names a sample that is not in the group."))
                continue
            if isinstance(dated.answer.value, list):
                dated = replace(dated, answer=replace(dated.answer, value=value))
        resolved.append((row, candidate, dated))
    return resolved


def list_names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def load_group_keys(candidates: Iterable[CandidateSample]) -> dict[tuple[int, str, str], str]:
    """Returns the ids of all samples of the groups, by step, group and content key."""
    groups: dict[int, set[str]] = defaultdict(set)
    for candidate in candidates:
        groups[candidate.step.pk].add(candidate.group)
    places = [Q(step=step, group__in=names) for step, names in sorted(groups.items())]
    samples = [
        sample
        for some in split(places, STEPS_PER_QUERY)
        for sample in Sample.objects.visible().filter(join(some)).order_by("dump", "ordinal")
    ]
    contents = load_contents(samples)
    return {
        (sample.step_id, sample.group, contents[sample.pk].key): sample.pk
        for sample in samples
        if sample.pk in contents
    }


def record_import(
    project: Project, by: User, answers: Sequence[DatedAnswer], result: ImportResult, options: ImportOptions
) -> None:
    """The audit log says whose labels were imported, if they are of others than the person who did it."""
    human = {dated.answer.author for dated in answers if dated.answer.source == Label.Source.HUMAN}
    authors = sorted(human - {"", by.get_username()})[:MAX_LISTED_NAMES]
    detail = {"new": result.labels["new"], "changed": result.labels["changed"], "author": ", ".join(authors)}
    record_audit_entry(by, "label.import", options.file or project.slug, project=project, **detail)
