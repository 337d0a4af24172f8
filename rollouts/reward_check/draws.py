"""The samples that queues have drawn at random, and what each draw stands for in an estimate."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from django.db.models import Max, Min, QuerySet

from rollouts.errors import InvalidInputError, QueryLimitError
from rollouts.models import Queue, QueueItem, QueueStep, Run
from rollouts.query import find_samples, is_changeable_term, parse_query

Domain = tuple[int, frozenset[int]]  # a step, and the queues that could draw from the same samples of it


@dataclass(frozen=True, slots=True)
class QueueDraw:
    """That a queue has drawn a sample. `stratum` is a part of the queue."""

    queue: int
    stratum: str
    probability: float


@dataclass(frozen=True, slots=True)
class QueueDraws:
    """`by_sample` are the draws of each sample in the order of the queues, `drawn` is the number of drawn items of each
    stratum, `domains` has the step of each sample and the queues that could draw it."""

    by_sample: Mapping[str, Sequence[QueueDraw]]
    drawn: Counter[str]
    domains: Mapping[str, Domain]

    def list_strata(self, samples: Sequence[str]) -> list[str]:
        """Returns the stratum of each sample, empty if it was not drawn."""
        draws = (self.by_sample.get(sample) for sample in samples)
        return [own[-1].stratum if own else "" for own in draws]

    def compute_probabilities(self, samples: Sequence[str]) -> list[float]:
        """Returns the chance of each of these labelled samples to be drawn and labelled, NaN if it was not drawn at
        random. The labelled items of a queue stand for all of their stratum. Where several queues could draw the same
        samples, each estimates the same total, so each counts with its part of the labelled draws: a multiple-frame
        estimator, Lohr, Sampling (3rd ed.), 14.2."""
        draws = [(draw, self.domains[sample]) for sample in samples for draw in self.by_sample.get(sample, ())]
        labelled = Counter(draw.stratum for draw, _domain in draws)
        of_queue = Counter((draw.queue, domain) for draw, domain in draws)
        of_domain = Counter(domain for _draw, domain in draws)

        def weigh(draw: QueueDraw, domain: Domain) -> float:
            part = of_queue[draw.queue, domain] / of_domain[domain]
            return part * self.drawn[draw.stratum] / (labelled[draw.stratum] * draw.probability)

        return [
            1 / sum(weigh(draw, self.domains[sample]) for draw in own) if (own := self.by_sample.get(sample)) else nan
            for sample in samples
        ]


class QueryMatches:
    """Which drawn samples of a run the queries of queues find today. Asks each query once."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], frozenset[str]] = {}

    def find(self, run: Run, q: str) -> frozenset[str]:
        """Returns the ids; no id if the query asks for what has changed since the draw, such as labels: what it would
        have found then is unknown. Raises QueryLimitError and StorageUnavailableError."""
        key = run.pk, q
        if key not in self._found:
            self._found[key] = find_drawn_matches(run, q)
        return self._found[key]


def find_drawn_matches(run: Run, q: str) -> frozenset[str]:
    drawn = QueueItem.objects.filter(run=run, queue__unit=Queue.Unit.SAMPLE).exclude(probability=None)
    steps = drawn.aggregate(first=Min("step__step"), last=Max("step__step"))
    narrowed = f"({q}) step:{steps['first']}..{steps['last']}" if q else ""
    try:
        if any(map(is_changeable_term, parse_query(q).leaves)):
            return frozenset()
        found = find_samples(run, q=narrowed, may_lack_keys=True).samples
    except QueryLimitError:
        raise
    except InvalidInputError:  # the project has changed since the draw
        return frozenset()
    ids: QuerySet[Any, str] = found.order_by().filter(pk__in=drawn.values("sample")).values_list("pk", flat=True)
    return frozenset(ids)


def load_draws(run: Run, items: QuerySet[QueueItem], matches: QueryMatches) -> QueueDraws:
    """Returns the draws of these items of queues whose items are samples. Raises QueryLimitError and
    StorageUnavailableError."""
    drawn: Counter[str] = Counter()
    by_sample: dict[str, list[QueueDraw]] = {}
    steps: dict[str, int] = {}
    queues: dict[int, str] = {}  # their queries
    drawn_steps: dict[int, set[int]] = defaultdict(set)
    fields = ("sample", "queue_id", "stratum", "step_id", "probability", "queue__q")
    for sample, queue, stratum, step, probability, q in items.order_by("queue_id").values_list(*fields):
        key = f"{queue}/{stratum}"
        drawn[key] += 1
        if probability:
            by_sample.setdefault(sample, []).append(QueueDraw(queue, key, probability))
            steps[sample], queues[queue] = step, q
            drawn_steps[queue].add(step)
    for queue, step in QueueStep.objects.filter(queue__in=queues, step__run=run).values_list("queue", "step"):
        drawn_steps[queue].add(step)
    queries = set(queues.values())
    matching = {q: matches.find(run, q) for q in queries} if len(queries) > 1 else {}
    domains: dict[str, Domain] = {}
    for sample, draws in by_sample.items():
        step, drawn_by = steps[sample], {queues[draw.queue] for draw in draws}
        could_draw = (
            queue
            for queue, q in queues.items()
            if step in drawn_steps[queue] and (q in drawn_by or sample in matching.get(q, ()))
        )
        domains[sample] = (step, frozenset(could_draw))
    return QueueDraws(by_sample, drawn, domains)
