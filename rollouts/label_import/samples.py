"""Finds the samples that rows mean: by id, else by place, else by text. Queries are for all rows of a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db.models import Q
from django.utils.translation import gettext as _

from rollouts.label_import.candidates import (
    MAX_CANDIDATES,
    STEP_COLUMNS,
    CandidateIndex,
    CandidateLoader,
    CandidateSample,
    CandidateStep,
    build_step_condition,
    build_text_condition,
    describe_too_many_matches,
    is_place,
    is_step,
    split,
)
from rollouts.label_import.rows import SampleClaims
from rollouts.models import Project, Run, Sample, Step
from rollouts.samples import SampleContent, load_contents


class MatchedBy(StrEnum):
    ID = "id"
    PLACE = "place"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Match:
    """`samples` are those of the row, more than one only if all that match are wanted. `problem` says why there are
    none; `is_ambiguous`: several match."""

    samples: tuple[CandidateSample, ...] = ()
    by: MatchedBy | None = None
    problem: str = ""
    is_ambiguous: bool = False


@dataclass
class SampleFinder:
    """`run` is the one of rows that name none, or one that the project does not have."""

    project: Project
    run: Run | None = None
    all_matches: bool = False
    runs: dict[str, int] = field(default_factory=dict)  # by name, uid and alias
    contents: dict[str, SampleContent] = field(default_factory=dict)
    crowds: dict[int, Match] = field(default_factory=dict)  # rows with so many candidates that they are not read

    def __post_init__(self) -> None:
        self.loader = CandidateLoader(self.project)

    def find(self, rows: Mapping[int, SampleClaims]) -> dict[int, Match]:
        """Returns the match of each row. Raises StorageUnavailableError."""
        self.load_runs(rows.values())
        found: dict[int, Match] = {}
        reasons: dict[int, str] = {}
        for by, find_candidates in (
            (MatchedBy.ID, self.find_by_id),
            (MatchedBy.PLACE, self.find_by_place),
            (MatchedBy.TEXT, self.find_by_text),
        ):
            open_rows = {number: claims for number, claims in rows.items() if number not in found}
            candidates = find_candidates(open_rows, reasons)
            found |= self.crowds
            self.load_contents(open_rows, candidates)
            for number, some in candidates.items():
                kept = [candidate for candidate in some if self.agrees(open_rows[number], candidate)]
                if some and not kept:
                    reasons[number] = describe_disagreement(by)
                elif kept:
                    found[number] = self.choose(kept, by)
        return {number: found.get(number) or Match(problem=reasons.get(number) or self.describe(rows[number]))
                for number in rows}  # fmt: skip

    def choose(self, kept: Sequence[CandidateSample], by: MatchedBy) -> Match:
        """Prefers samples of current steps."""
        chosen = [candidate for candidate in kept if not candidate.step.superseded] or list(kept)
        if len(chosen) == 1 or self.all_matches:
            return Match(tuple(chosen), by)
        message = _("{count} samples match. Add what tells them apart: run, split, step, group or index.")
        return Match(problem=message.format(count=f"{len(chosen):,}"), is_ambiguous=True)

    def load_runs(self, rows: Iterable[SampleClaims]) -> None:
        names = {name for claims in rows for name in (claims.run, claims.run_id) if name} - self.runs.keys()
        known = Q(uid__in=names) | Q(name__in=names) | Q(aliases__uid__in=names)
        found = self.project.runs.filter(known, deleted_at=None).values_list("pk", "name", "uid", "aliases__uid")
        rows_found = list(found) if names else []
        for pk, _name, uid, alias in rows_found:
            self.runs |= {key: pk for key in (alias, uid) if key}
        for pk, name, _uid, _alias in rows_found:
            self.runs[name] = pk

    def get_run(self, claims: SampleClaims) -> int | None:
        """Returns the run that the row names, or the one for rows that name none that the project has."""
        known = self.runs.get(claims.run_id) or self.runs.get(claims.run)
        return known or (self.run.pk if self.run else None)

    def find_by_id(self, rows: Mapping[int, SampleClaims], reasons: dict[int, str]) -> dict[int, list[CandidateSample]]:
        ids = {claims.sample for claims in rows.values() if claims.sample.isascii() and claims.sample.isprintable()}
        candidates = self.loader.load_candidates(Q(pk__in=ids - {""})) if ids else []
        by_id = {candidate.pk: candidate for candidate in candidates}
        found = {}
        for number, claims in rows.items():
            if candidate := by_id.get(claims.sample):
                found[number] = [candidate]
            elif claims.sample:
                reasons[number] = _("The project has no sample with this id.")
        return found

    def find_by_place(
        self, rows: Mapping[int, SampleClaims], reasons: dict[int, str]
    ) -> dict[int, list[CandidateSample]]:
        placed = {n: claims for n, claims in rows.items() if claims.has_place and self.get_run(claims) is not None}
        steps = self.find_steps(placed)
        wanted: dict[int, list[SampleClaims]] = defaultdict(list)
        for number, claims in placed.items():
            if not steps[number]:
                reasons[number] = _("The run has no such step.")
            for step in steps[number]:
                wanted[step.pk].append(claims)
        conditions = {step: build_step_condition(step, some) for step, some in wanted.items()}
        candidates, problems = self.loader.load_counted("step", conditions, {})
        index = CandidateIndex(candidates)
        found = {}
        for number, claims in placed.items():
            if problem := next((problems[step.pk] for step in steps[number] if step.pk in problems), ""):
                self.crowds[number] = Match(problem=problem, is_ambiguous=True)
                continue
            found[number] = [candidate for step in steps[number] for candidate in index.find(step.pk, claims)]
            if steps[number] and not found[number]:
                reasons[number] = _("The step has no sample at this place.")
        return found

    def find_steps(self, rows: Mapping[int, SampleClaims]) -> dict[int, list[CandidateStep]]:
        """The steps that each row may mean: current ones, unless it names an attempt of the run."""
        numbers = {claims.step for claims in rows.values() if claims.step is not None}
        runs = {self.get_run(claims) for claims in rows.values()}
        loaded = self.loader.load_steps(Step.objects.filter(run__in=runs, step__in=numbers).values_list(*STEP_COLUMNS))
        by_number: dict[tuple[int, int], list[CandidateStep]] = defaultdict(list)
        for step in loaded:
            by_number[step.run, step.step].append(step)
        found = {}
        for number, claims in rows.items():
            run, at = self.get_run(claims), claims.step
            assert run is not None and at is not None
            some = [step for step in by_number[run, at] if is_step(claims, step)]
            attempt = [step for step in some if step.attempt == claims.attempt]
            found[number] = attempt or [step for step in some if not step.superseded]
        return found

    def find_by_text(
        self, rows: Mapping[int, SampleClaims], reasons: dict[int, str]
    ) -> dict[int, list[CandidateSample]]:
        asked = {n: claims for n, claims in rows.items() if claims.has_text}
        wanted: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for claims in asked.values():
            wanted[claims.prompt_key].append(self.list_lookups(claims))
        conditions = {key: build_text_condition(key, some) for key, some in wanted.items()}
        # Only if the rows of a prompt mean the same samples is their number that of each row.
        limits = {key: MAX_CANDIDATES for key, some in wanted.items() if all(each == some[0] for each in some)}
        candidates, problems = self.loader.load_counted("prompt_key", conditions, limits)
        by_key: dict[str, list[CandidateSample]] = defaultdict(list)
        for candidate in candidates:
            by_key[candidate.prompt_key].append(candidate)
        found = {}
        for number, claims in asked.items():
            run = self.get_run(claims)
            some = by_key[claims.prompt_key]
            some = [row for row in some if (run is None or row.step.run == run) and is_place(claims, row)]
            if len(some) > MAX_CANDIDATES:
                some = [row for row in some if claims.chars in (None, row.chars)]
            problem = problems.get(claims.prompt_key) or (
                describe_too_many_matches() if len(some) > MAX_CANDIDATES else ""
            )
            if problem:
                self.crowds[number] = Match(problem=problem, is_ambiguous=True)
                continue
            found[number] = some
            if not some:
                reasons[number] = reasons.get(number) or _("No sample has this prompt and response.")
        return found

    def list_lookups(self, claims: SampleClaims) -> dict[str, Any]:
        """What the index row of a sample with the text of this row has, by the name of the lookup."""
        lookups = {
            "step__run": self.get_run(claims),
            "step__step": claims.step,
            "step__split": claims.split,
            "step__step_kind": claims.step_kind,
            "group": claims.group,
            "index": claims.index,
            "trajectory": claims.trajectory,
            "chars": claims.chars,
        }
        return {name: value for name, value in lookups.items() if value not in (None, "")}

    def load_contents(
        self, rows: Mapping[int, SampleClaims], candidates: Mapping[int, Sequence[CandidateSample]]
    ) -> None:
        """Reads the texts of the candidates whose rows say something about them."""
        ids = {row.pk for number, some in candidates.items() if rows[number].needs_content for row in some}
        for part in split(sorted(ids - self.contents.keys()), 1_000):
            self.contents |= load_contents(list(Sample.objects.filter(pk__in=part).order_by("dump", "ordinal")))

    def agrees(self, claims: SampleClaims, candidate: CandidateSample) -> bool:
        """Whether the sample is what the row says, as far as it can be compared."""
        run = self.runs.get(claims.run_id) or self.runs.get(claims.run)
        if (run is not None and candidate.step.run != run) or not is_place(claims, candidate):
            return False
        if not claims.needs_content:
            return True
        content = self.contents.get(candidate.pk)
        if content is None:
            return False
        if claims.turn is not None and content.turn != claims.turn:
            return False
        if claims.content_key and content.key != claims.content_key:
            return False
        return not claims.text_key or content.text_key == claims.text_key

    def describe(self, claims: SampleClaims) -> str:
        """Why no way to find the sample applies."""
        named = claims.run or claims.run_id
        if named and self.get_run(claims) is None:
            return _("The project has no run {name}.").format(name=repr(named[:60]))
        if claims.step is not None and not named and not claims.prompt_key:
            return _("The row has a step, but names no run.")
        return _("The row names no sample: by id, by run, step, group and index, or by prompt and response.")


def describe_disagreement(by: MatchedBy) -> str:
    match by:
        case MatchedBy.ID:
            return _("The sample with this id has another place or text than the row says.")
        case MatchedBy.PLACE:
            return _("The sample at this place has another prompt or response.")
        case _:
            return _("No sample has this prompt and response.")
