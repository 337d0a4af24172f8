"""What the rules of a project select now: keys of prompts and responses, for trainers.

A rule's query finds samples of training steps in the project's newest runs. Work and result are bounded, and the result
says what was left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from django.db.models import Count, Max
from django.utils.translation import get_language

from rolloutdeck.protocol import KEY_SEPARATOR, compute_response_key
from rollouts.errors import InvalidInputError, QueryLimitError
from rollouts.guidance.versions import RuleVersion
from rollouts.lib import Cache, CacheSize
from rollouts.models import BlindQueues, Project, Queue, Run, Sample
from rollouts.query import TimeBudget, find_samples
from rollouts.samples import TEXT_PROPERTY_BITS, load_texts

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.guidance.rules import Rule

MAX_RUNS: Final = 30
MAX_PROMPTS: Final = 20_000  # of all rules together
MAX_RESPONSES: Final = 5_000
CUT_SECONDS: Final = 60.0  # for which a search that ended at a limit is used: the next one may get further
SEARCH_SECONDS: Final = 15.0  # for the texts that all rules search in all runs: each trainer asks after each step

_CacheKey = tuple[Any, ...]


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
class Selection:
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


_selections: Cache[_CacheKey, Selection] = Cache(CacheSize.GUIDANCE_SELECTIONS)


def select_rows(project: Project, version: RuleVersion, reader: User, also: Collection[int] = ()) -> Selection:
    """Returns what the rules select in the newest runs, and in the runs with the ids `also`. Labels that `reader` may
    not read do not count. Raises StorageUnavailableError."""
    if not version.rules:
        return Selection()
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
) -> Selection:
    """`is_complete`: the project has no other runs."""
    selection = Selection()
    deadline = monotonic() + SEARCH_SECONDS
    for position, rule in enumerate(rules):
        found = RuleSelection(rule.key, is_complete=is_complete)
        selection.rules.append(found)
        samples: list[str] = []
        keys, target = find_keys(runs, rule, found, reader, blind, deadline, samples), selection.prompts
        for sample in samples:
            selection.samples.setdefault(sample, []).append(position)
        limit = MAX_PROMPTS
        if rule.target == "response":
            target, limit = selection.responses, MAX_RESPONSES
        for key in keys:
            found.selected += 1
            if key in target or len(target) < limit:
                found.sent += 1
                target.setdefault(key, []).append(position)
        found.is_complete &= found.sent == found.selected
    return selection


def find_keys(
    runs: list[Run],
    rule: Rule,
    found: RuleSelection,
    reader: User,
    blind: BlindQueues,
    deadline: float,
    matches: list[str],
) -> list[str]:
    """Returns the keys that the rule selects, each once, those of the newest runs first. No text is searched after the
    `deadline`; then the rule is not complete. Adds the samples that match a rule about responses to `matches`."""
    keys: dict[str, None] = {}
    answered = False
    for run in runs:
        budget = TimeBudget(max(0.0, deadline - monotonic()))
        try:
            result = find_samples(run, split="train", q=rule.query, time_budget=budget, reader=reader.pk, blind=blind)
            if rule.target == "prompt":
                prompts = result.samples.order_by().values("prompt_key")
                counts = prompts.annotate(count=Count("pk"), newest=Max("step__step")).order_by("-newest", "prompt_key")
                for key, count in counts.values_list("prompt_key", "count")[: MAX_PROMPTS + 1]:
                    found.samples += count
                    keys[key] = None
            else:
                samples = list(result.samples.order_by("-step__step", "pk")[: MAX_RESPONSES + 1])
                found.samples += len(samples)
                found.is_complete &= len(samples) <= MAX_RESPONSES
                matches += [sample.pk for sample in samples[:MAX_RESPONSES]]
                keys |= dict.fromkeys(build_response_keys(samples[:MAX_RESPONSES]))
        except QueryLimitError:  # the search of this run was not finished
            found.is_cut = answered = True
            continue
        except InvalidInputError as error:  # this run has no such key
            found.problem = found.problem or str(error)
            continue
        answered = True
        found.is_cut |= result.cursor is not None
    found.is_complete &= not found.is_cut
    if answered:
        found.problem = ""
    return list(keys)


def build_response_keys(samples: list[Sample]) -> list[str]:
    samples = [sample for sample in samples if has_text(sample)]
    texts = load_texts(samples)
    known = [sample for sample in samples if sample.pk in texts]
    return [f"{sample.prompt_key}{KEY_SEPARATOR}{compute_response_key(texts[sample.pk][1])}" for sample in known]


def has_text(sample: Sample) -> bool:
    """Whether the response was recorded as text. All others would seem to have the same, empty response."""
    return not sample.facets & TEXT_PROPERTY_BITS["no-text"]
