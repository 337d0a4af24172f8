"""What the rules of a project select now: keys of prompts and responses, for trainers.

A rule's query finds samples of training steps in the project's newest runs. Work and result are bounded, and the result
says what was left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Count, Max
from django.utils.translation import get_language

from rolloutdeck.protocol import KEY_SEPARATOR, compute_response_key
from rollouts.errors import InvalidInputError, QueryLimitError
from rollouts.guidance.versions import RuleVersion
from rollouts.lib import Cache, CacheSize
from rollouts.models import BlindQueues, Project, Queue, Run, Sample
from rollouts.query import (
    And,
    InvalidQueryError,
    LoggedKeyTerm,
    Not,
    Or,
    Query,
    QueryNode,
    QueryResult,
    TimeBudget,
    collect_leaves,
    find_samples,
    parse_query,
)
from rollouts.samples import TEXT_PROPERTY_BITS, load_texts

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.guidance.rules import Rule

MAX_RUNS: Final = 30
MAX_PROMPTS: Final = 20_000  # of all rules together
MAX_RESPONSES: Final = 5_000
TEXTS_AT_ONCE: Final = 250  # in memory
CUT_SECONDS: Final = 60.0  # for which a search that ended at a limit is used: the next one may get further
SEARCH_SECONDS: Final = 15.0  # for the texts that all rules search and read in all runs: each trainer asks each step
READ_SECONDS: Final = 5.0  # more, for responses: a rule that searches no text sends some of them in any case

_CacheKey = tuple[Any, ...]
Span = tuple[int, int]  # of a term in its query


@dataclass(slots=True)
class RuleSelection:
    """What one rule selects: `selected` different prompts or responses, of which the first `sent` are sent. `problem`:
    why no run can answer the query. `is_complete`: no sample was left out of the search. `is_cut`: the search ended at
    a limit of time or memory."""

    key: str
    selected: int = 0
    sent: int = 0
    samples: int = 0
    is_complete: bool = True
    is_cut: bool = False
    problem: str = ""


@dataclass(slots=True)
class SelectedRows:
    """`prompts` are {prompt key: positions of rules}; `responses` {"prompt key/response key": positions of rules};
    `samples` {sample id: positions of rules} of the rules about responses, also for samples without a text."""

    rules: list[RuleSelection] = field(default_factory=list)
    prompts: dict[str, list[int]] = field(default_factory=dict)
    responses: dict[str, list[int]] = field(default_factory=dict)
    samples: dict[str, list[int]] = field(default_factory=dict)
    searched_at: float = field(default_factory=monotonic, compare=False)

    @property
    def is_outdated(self) -> bool:
        return any(rule.is_cut for rule in self.rules) and monotonic() - self.searched_at > CUT_SECONDS

    @property
    def is_complete(self) -> bool:
        return all(rule.is_complete for rule in self.rules)


_selections: Cache[_CacheKey, SelectedRows] = Cache(CacheSize.GUIDANCE_SELECTIONS)


def select_rows(project: Project, version: RuleVersion, reader: User, also: Collection[int] = ()) -> SelectedRows:
    """Returns what the rules select in the newest runs, and in the runs with the ids `also`. Labels that `reader` may
    not read do not count. Raises StorageUnavailableError."""
    if not version.rules:
        return SelectedRows()
    ordered = project.runs.filter(deleted_at=None).order_by("-created_at", "-pk")
    newest = list(ordered[: MAX_RUNS + 1])
    runs, has_more = newest[:MAX_RUNS], len(newest) > MAX_RUNS
    if older := set(also) - {run.pk for run in runs}:
        runs = [*ordered.filter(pk__in=older)[:MAX_RUNS], *runs]
    blind = Queue.objects.blind_for(reader.pk)
    states = tuple((run.created_at, run.version) for run in runs)
    key = (project.pk, version.rules, reader.pk, blind, has_more, states, get_language())  # problems are translated
    selection = _selections.get(key)
    if selection is None or selection.is_outdated:
        selection = compute_selection(runs, version.rules, reader, blind, is_complete=not has_more)
        _selections.replace(key, selection)
    return selection


def compute_selection(
    runs: list[Run], rules: Iterable[Rule], reader: User, blind: BlindQueues, *, is_complete: bool
) -> SelectedRows:
    """`is_complete`: the project has no other runs."""
    selection = SelectedRows()
    deadline = monotonic() + SEARCH_SECONDS
    for position, rule in enumerate(rules):
        found = RuleSelection(rule.key, is_complete=is_complete)
        selection.rules.append(found)
        search = RuleSearch(rule, found, reader, blind, deadline)
        search.search_runs(runs)
        for sample in search.matches:
            selection.samples.setdefault(sample, []).append(position)
        target, limit = selection.prompts, MAX_PROMPTS
        if rule.target == "response":
            target, limit = selection.responses, MAX_RESPONSES
        for key in search.keys:
            found.selected += 1
            if key in target or len(target) < limit:
                found.sent += 1
                target.setdefault(key, []).append(position)
        found.is_complete &= found.sent == found.selected
    return selection


@dataclass(slots=True)
class RuleSearch:
    """Searches runs for what a rule selects. `keys` are the prompts or responses, each once; `matches` are the samples
    that match a rule about responses. After the `deadline` no text is searched, and soon none is read; then the rule is
    cut."""

    rule: Rule
    found: RuleSelection
    reader: User
    blind: BlindQueues
    deadline: float
    keys: dict[str, None] = field(default_factory=dict)
    matches: list[str] = field(default_factory=list)

    def search_runs(self, runs: Sequence[Run]) -> None:
        """Keys of the newest runs come first. A key that only some runs have logged is a problem of none: the others
        come last."""
        query = parse_query(self.rule.query)
        lacking: list[tuple[Run, InvalidInputError]] = []
        is_answered = False
        for run in runs:
            try:
                is_answered |= self.search_run(run, query)
            except InvalidInputError as error:
                self.found.problem = self.found.problem or str(error)
                lacking.append((run, error))
        if is_answered:
            self.found.problem = ""
            for run, problem in lacking:
                self.search_lacking_run(run, query, problem)
        self.found.is_complete &= not self.found.is_cut

    def search_lacking_run(self, run: Run, query: Query, error: InvalidInputError) -> None:
        """Searches a run for what matches whatever the term that it cannot answer means there."""
        if query.root is None or not isinstance(error, InvalidQueryError):  # such as re-scores that are hidden
            self.found.is_complete = False
            return
        root = drop_term(query.root, error.span)
        negated = [leaf for leaf in list_negated_leaves(query.root) if is_at(leaf, error.span)]
        self.found.is_complete &= root != query.root and not negated
        if root is None or root == query.root:
            return
        query = replace(query, root=root, leaves=tuple(collect_leaves(root)))
        try:
            self.search_run(run, query)
        except InvalidInputError as other:
            self.search_lacking_run(run, query, other)

    def search_run(self, run: Run, query: Query) -> bool:
        """Returns whether the run has the keys that the query asks for: a run without samples shows nothing about them,
        nor does a search that ended at a limit. Raises InvalidInputError if the run cannot answer the query."""
        try:
            result = find_samples(
                run, split="train", q=query, reader=self.reader.pk, blind=self.blind,
                time_budget=TimeBudget(max(0.0, self.deadline - monotonic())),
            )  # fmt: skip
            is_cut = result.cursor is not None
            self.found.is_cut |= is_cut
            if is_cut and any(isinstance(leaf, LoggedKeyTerm) for leaf in list_negated_leaves(query.root)):
                return False  # the samples may lack the key, which would make each one match
            if self.rule.target == "prompt":
                self.add_prompts(result)
            else:
                self.add_responses(result)
        except QueryLimitError:  # the search of this run was not finished
            self.found.is_cut = True
            return False
        return not is_cut and result.scope.steps.filter(samples__gt=0).exists()

    def add_prompts(self, result: QueryResult) -> None:
        prompts = result.samples.order_by().values("prompt_key")
        counts = prompts.annotate(count=Count("pk"), newest=Max("step__step")).order_by("-newest", "prompt_key")
        for key, count in counts.values_list("prompt_key", "count")[: MAX_PROMPTS + 1]:
            self.found.samples += count
            self.keys[key] = None

    def add_responses(self, result: QueryResult) -> None:
        """Reads no more texts once there are more keys than can be sent."""
        samples = list(result.samples.order_by("-step__step", "dump_id", "ordinal")[: MAX_RESPONSES + 1])
        self.found.samples += len(samples)
        self.found.is_complete &= len(samples) <= MAX_RESPONSES
        del samples[MAX_RESPONSES:]
        self.matches += [sample.pk for sample in samples]
        for first in range(0, len(samples), TEXTS_AT_ONCE):
            if len(self.keys) > MAX_RESPONSES:
                return
            if monotonic() >= self.deadline + READ_SECONDS:
                self.found.is_cut = True
                return
            self.keys |= dict.fromkeys(build_response_keys(samples[first : first + TEXTS_AT_ONCE]).values())


def drop_term(node: QueryNode, span: Span) -> QueryNode | None:
    """Returns what can match where the term at `span` is unknown, None if nothing can. Its negation is unknown too."""
    if isinstance(node, And | Or):
        parts = [drop_term(part, span) for part in node.parts]
        kept = tuple(part for part in parts if part is not None)
        if isinstance(node, Or):
            return Or(kept) if kept else None
        return And(kept) if len(kept) == len(parts) else None
    if isinstance(node, Not):
        return node if drop_term(node.part, span) == node.part else None
    return None if is_at(node, span) else node


def is_at(leaf: QueryNode, span: Span) -> bool:
    return getattr(leaf, "span", None) == span


def list_negated_leaves(node: QueryNode | None) -> list[QueryNode]:
    if isinstance(node, And | Or):
        return [leaf for part in node.parts for leaf in list_negated_leaves(part)]
    return collect_leaves(node.part) if isinstance(node, Not) else []


def build_response_keys(samples: Iterable[Sample]) -> dict[str, str]:
    """Returns {sample id: key of its response} of the samples with a text. All texts are in memory at once."""
    samples = [sample for sample in samples if has_text(sample)]
    texts = load_texts(samples) if samples else {}
    known = [sample for sample in samples if sample.pk in texts]
    return {
        sample.pk: f"{sample.prompt_key}{KEY_SEPARATOR}{compute_response_key(texts[sample.pk][1])}" for sample in known
    }


def has_text(sample: Sample) -> bool:
    """Whether the response was recorded as text. All others would seem to have the same, empty response."""
    return not sample.facets & TEXT_PROPERTY_BITS["no-text"]
