"""Which responses of a group are better: by score, by the answers of people, or by the ranks that people gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from math import comb, inf
from typing import Any, Final, NamedTuple

from django.contrib.auth.models import AnonymousUser, User

from rollouts.agreement import ItemAnswer
from rollouts.exports.options import ExportOptions
from rollouts.labels import find_blind_samples
from rollouts.models import ItemDecision, Label, LabelQuerySet, QueueSlot
from rollouts.reward_check import decide_answers, format_answer, load_empty_answers

RANK: Final = "rank"  # label of a place in the order of a group, from 1
BETTER_THAN: Final = "better-than"  # label with the ids of the responses that are worse
CORRECTION: Final = "correction"


class GroupSample(NamedTuple):
    """The columns of an index row that training data needs."""

    pk: str
    dump_id: int
    ordinal: int
    step_id: int
    group: str
    prompt_key: str
    final: bool
    score: float | None
    chars: int


@dataclass(slots=True)
class Signals:
    """What decides about some samples, by sample id. `values` are scores, or 1 and 0 for good and bad answers. `votes`
    are {(better, worse): people} of ranks."""

    values: dict[str, float] = field(default_factory=dict)
    votes: dict[tuple[str, str], int] = field(default_factory=dict)
    corrections: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pair:
    """`margin` is the difference of the scores, None if one is missing."""

    better: str
    worse: str
    margin: float | None


def load_signals(
    samples: Sequence[GroupSample], options: ExportOptions, reader: User | AnonymousUser | None, *, labelled: bool
) -> Signals:
    """Uses the labels that the reader may read. `labelled`: some of the samples may have labels."""
    ids = [sample.pk for sample in samples]
    signals = Signals(corrections=load_corrections(samples, options, reader, labelled=labelled))
    if options.signal == "score":
        signals.values = {sample.pk: sample.score for sample in samples if sample.score is not None}
    elif options.signal == "label":
        signals.values = load_answers(select_labels(ids, reader), ids, options, reader)
    else:
        names = (RANK, BETTER_THAN)
        labels = select_labels(ids, reader).filter(name__in=names, source="human")
        rows = labels.values_list("sample", "author", "name", "value")
        signals.votes = count_votes(samples, rows)
    return signals


def load_corrections(
    samples: Sequence[GroupSample], options: ExportOptions, reader: User | AnonymousUser | None, *, labelled: bool
) -> dict[str, str]:
    """Returns the newest correction of a person of each sample, if the options want them."""
    if not (options.corrections and labelled):
        return {}
    labels = select_labels([sample.pk for sample in samples], reader).filter(name=CORRECTION, source="human")
    texts = labels.order_by("updated_at", "pk").values_list("sample", "value")
    return {sample: text for sample, text in texts if isinstance(text, str) and text}


def select_labels(samples: Sequence[str], reader: User | AnonymousUser | None) -> LabelQuerySet:
    labels = Label.objects.active().filter(sample__in=samples)
    return labels if reader is None else labels.readable_by(reader)


def load_answers(
    labels: Any, ids: Sequence[str], options: ExportOptions, reader: User | AnonymousUser | None
) -> dict[str, float]:
    """Returns 1 for samples that people call good, 0 for the others: a lead's decision, else what most people say."""
    assert options.asked is not None
    question = options.asked.question
    rows = labels.filter(name=question.key, source="human").values_list("sample", "author", "value")
    decisions = load_decisions(ids, reader).get(question.key, {})
    values = decide_answers(question, [ItemAnswer(*row) for row in rows], decisions)
    return {str(sample): float(format_answer(value) in options.asked.good) for sample, value in values.items()}


def load_decisions(samples: Sequence[str], reader: User | AnonymousUser | None) -> dict[str, dict[Hashable, Any]]:
    """Returns {question: {sample: value}} of the leads' decisions, without those about samples of open blind queues
    that the reader reviews. Of two queues with the sample, the later decision counts."""
    rows = ItemDecision.objects.filter(item__sample__in=samples).order_by("at", "pk")
    if reader is not None and (hidden := find_blind_samples(reader, samples)):
        rows = rows.exclude(item__sample__in=hidden)
    found: dict[str, dict[Hashable, Any]] = defaultdict(dict)
    for sample, name, value in rows.values_list("item__sample", "name", "value"):
        found[name][sample] = value
    return found


def load_readable_empty_answers(
    samples: Sequence[str], name: str, reader: User | AnonymousUser | None
) -> list[ItemAnswer]:
    """Returns the answers of people who chose none of several choices, without those of others about samples of open
    blind queues that the reader reviews."""
    slots = QueueSlot.objects.filter(item__sample__in=samples)
    answers = load_empty_answers(slots, Label.objects.active().filter(sample__in=samples), name)
    if reader is None or not answers:
        return answers
    hidden = find_blind_samples(reader, samples)
    return [answer for answer in answers if answer.item not in hidden or answer.person == reader.get_username()]


def count_votes(
    samples: Sequence[GroupSample], rows: Iterable[tuple[str, str, str, Any]]
) -> dict[tuple[str, str], int]:
    """Counts for each two responses of a group how many people prefer the first, each of them once."""
    groups = {sample.pk: get_group(sample) for sample in samples}
    ranks: dict[tuple[str, Hashable], list[tuple[float, str]]] = defaultdict(list)
    people: dict[tuple[str, str], set[str]] = defaultdict(set)
    for sample, author, name, value in rows:
        if name == RANK and isinstance(value, int | float):
            ranks[author, groups[sample]].append((value, sample))
        elif name == BETTER_THAN and isinstance(value, list):
            for other in value:
                people[sample, str(other)].add(author)
    for (author, _group), order in ranks.items():
        for (first, better), (second, worse) in combinations(sorted(order), 2):
            voters = people[better, worse]  # none if the two have one place
            if first < second:
                voters.add(author)
    return {pair: len(names) for pair, names in people.items()}


def get_group(sample: GroupSample) -> tuple[int, str, str]:
    """Responses to one prompt in one step. The turns of a conversation share a group, but not a prompt."""
    return sample.step_id, sample.group, sample.prompt_key


def group_samples(samples: Iterable[GroupSample]) -> Iterable[list[GroupSample]]:
    """The samples are in the order of their groups."""
    return (list(rows) for _group, rows in groupby(samples, key=get_group))


def find_pairs(group: Sequence[GroupSample], signals: Signals, options: ExportOptions) -> tuple[list[Pair], int]:
    """Returns the pairs of a group with a better and a worse response, best first, and how many were equal, or closer
    than the margin."""
    ids = [sample.pk for sample in group]
    scores = {sample.pk: sample.score for sample in group}
    choose = find_ranked_pairs if options.signal == "rank" else find_valued_pairs
    found, ties = choose(ids, signals, scores, options)
    pairs = [Pair(better, worse, subtract(scores[better], scores[worse])) for better, worse in found]
    kept = [pair for pair in pairs if pair.margin is None or is_far_apart(pair.margin, options)]
    return kept, ties + len(pairs) - len(kept)


def subtract(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first - second


def is_far_apart(margin: float | None, options: ExportOptions) -> bool:
    """Whether a pair can be exported. Without a score it has no margin."""
    return not options.needs_margin or (margin is not None and margin > options.min_margin)


def find_valued_pairs(
    ids: Sequence[str], signals: Signals, scores: Mapping[str, float | None], options: ExportOptions
) -> tuple[list[tuple[str, str]], int]:
    """Returns the pairs (better, worse), and how many were equal. The best and the worst response have the largest
    margin: of equal values the scores decide, so that good responses without a score come last, and bad ones first."""
    known: list[tuple[float, float, int, str]] = []
    for at, pk in enumerate(ids):
        if (value := signals.values.get(pk)) is not None:
            score = scores[pk]
            if score is None:
                score = -inf if value else inf
            known.append((-value, -score, at, pk))
    known.sort()
    if len(known) < 2:
        return [], 0
    is_best_worst = options.pairs == "best-worst"
    chosen = [(known[0], known[-1])] if is_best_worst else combinations(known, 2)
    pairs = [(better, worse) for (high, *_a, better), (low, *_b, worse) in chosen if high < low]  # values are negated
    return pairs, (1 if is_best_worst else comb(len(known), 2)) - len(pairs)


def find_ranked_pairs(
    ids: Sequence[str], signals: Signals, scores: Mapping[str, float | None], options: ExportOptions
) -> tuple[list[tuple[str, str]], int]:
    """Returns the pairs (better, worse), and how many were equal. The best and the worst response are those that can be
    exported, if there are any."""
    decided, ties = [], 0
    wins: dict[str, int] = defaultdict(int)
    for first, second in combinations(ids, 2):
        lead = signals.votes.get((first, second), 0) - signals.votes.get((second, first), 0)
        if lead:
            better, worse = (first, second) if lead > 0 else (second, first)
            decided.append((better, worse))
            wins[better] += 1
            wins[worse] -= 1
        else:
            ties += (first, second) in signals.votes or (second, first) in signals.votes
    if options.pairs == "all" or not decided:
        return decided, ties
    far = [pair for pair in decided if is_far_apart(subtract(scores[pair[0]], scores[pair[1]]), options)]
    return [max(far or decided, key=lambda pair: wins[pair[0]] - wins[pair[1]])], ties
