"""The responses of a group as a person sees them: their numbers, the pairs that are compared, and what was answered.

Pairs are {"pairs": {"value": {"2-5": "left"}}}: the numbers of the left and the right response, and which is better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext as _

from rollouts.errors import OutdatedError
from rollouts.labels import BETTER_QUESTION, PAIR_QUESTIONS, RANK_QUESTION
from rollouts.models import Label, LabelQuerySet, QueueItem, Sample

if TYPE_CHECKING:
    from django.contrib.auth.models import User

ORDER_KEY: Final = "order"  # of a group in a draft
PAIRS_KEY: Final = "pairs"
COMPARISON_KEYS: Final = frozenset((ORDER_KEY, PAIRS_KEY))
LEFT, RIGHT, EQUAL, SKIP = "left", "right", "equal", "skip"
OUTCOMES: Final = (LEFT, RIGHT, EQUAL, SKIP)


def list_group_samples(item: QueueItem) -> list[Sample]:
    """Returns the responses of the item's group, in the order of the step page."""
    rows = Sample.objects.visible().filter(step=item.step_id, group=item.group, final=True)
    return list(rows.select_related("step").order_by("index", "pk"))


def hash_parts(*parts: object) -> bytes:
    return blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()


def shuffle_for(user: User, item: QueueItem, samples: list[Sample]) -> list[Sample]:
    """Returns the responses of a group in an order of the person's own, always the same."""
    return samples if len(samples) < 2 else sorted(samples, key=lambda sample: hash_parts(user.pk, item.pk, sample.pk))


def hash_responses(user: User, item: QueueItem, shuffled: Iterable[Sample]) -> str:
    """Returns the version of the group as this person sees it: in another one the numbers mean other responses."""
    return hash_parts(user.pk, item.pk, *(sample.pk for sample in shuffled)).hex()


def compute_group_version(item: QueueItem, user: User) -> str:
    return hash_responses(user, item, shuffle_for(user, item, list_group_samples(item)))


def check_group_version(item: QueueItem, user: User, version: str) -> None:
    """Raises OutdatedError if the person saw another version of the group. A script may send none."""
    if version and version != compute_group_version(item, user):
        message = _("The responses of this group have changed since you opened it. Look at them again.")
        raise OutdatedError(message, "version")


def drop_outdated_pairs(item: QueueItem, user: User, answers: dict[str, Any]) -> dict[str, Any]:
    """Returns the answers of a draft without pairs of another version of the group. Earlier releases stored none."""
    if PAIRS_KEY not in answers:
        return answers
    pairs = dict(answers[PAIRS_KEY])
    is_current = pairs.pop("version", "") in ("", compute_group_version(item, user))
    kept = {name: answer for name, answer in answers.items() if name != PAIRS_KEY}
    return {**kept, PAIRS_KEY: pairs} if is_current else kept


def draw_pairs(item: QueueItem, samples: Iterable[str], count: int) -> list[tuple[str, str]]:
    """Returns `count` pairs of these responses, the same for all people; fewer if there are not as many.

    They are the first rounds of a round-robin tournament of the shuffled responses: each response is in equally many
    pairs, give or take one, and about as many pairs as responses link all of them.
    """
    players: list[str] = sorted(samples, key=lambda sample: hash_parts(item.queue.seed, item.sample, sample))
    if len(players) % 2:
        players.append("")  # the response paired with it has no pair in this round
    pairs: list[tuple[str, str]] = []
    half = len(players) // 2
    for _round in range(len(players) - 1):
        if len(pairs) >= count:
            break
        pairs += [pair for pair in zip(players[:half], reversed(players[half:]), strict=True) if "" not in pair]
        players = [*players[:1], *players[-1:], *players[1:-1]]
    return pairs[:count]


def place_pair(item: QueueItem, user: User, pair: tuple[str, str]) -> tuple[str, str]:
    """Returns the responses of a pair, the one first that this person sees at the left."""
    first, second = sorted(pair)
    return (first, second) if hash_parts(user.pk, item.pk, first, second)[0] % 2 else (second, first)


def build_pairs(item: QueueItem, user: User, shuffled: list[Sample]) -> list[tuple[int, int]]:
    """Returns the pairs of the item as numbers of this person's responses, the left one first."""
    numbers = {sample.pk: number for number, sample in enumerate(shuffled, 1)}
    pairs = draw_pairs(item, numbers, item.queue.pairs_per_group or 0)
    return [(numbers[left], numbers[right]) for left, right in (place_pair(item, user, pair) for pair in pairs)]


def format_pair(left: int, right: int) -> str:
    return f"{left}-{right}"


def load_stored_order(item: QueueItem, user: User) -> dict[str, dict[str, Any]]:
    """Returns the order that the labels of the user say; empty if there is none."""
    samples = [sample.pk for sample in list_group_samples(item)]
    rows = load_own_labels(samples, user).filter(name=RANK_QUESTION.key)
    places: dict[int, list[str]] = {}
    rationale = ""
    for row in rows.order_by("sample"):
        places.setdefault(row.value, []).append(row.sample)
        rationale = rationale or row.rationale
    order = [places[rank] for rank in sorted(places)]
    return {ORDER_KEY: {"value": order, "rationale": rationale}} if order else {}


def load_stored_pairs(item: QueueItem, user: User) -> dict[str, dict[str, Any]]:
    """Returns the pairs that the labels of the user say. A pair without a label was skipped if the user has answered
    the item."""
    shuffled = shuffle_for(user, item, list_group_samples(item))
    samples = [sample.pk for sample in shuffled]
    signs = read_pair_labels(load_own_labels(samples, user).filter(name__in=PAIR_QUESTIONS))
    is_answered = item.slots.filter(user=user).exclude(done_at=None).exists()
    names = {1: LEFT, -1: RIGHT, 0: EQUAL, None: SKIP if is_answered else None}
    outcomes = {}
    for left, right in build_pairs(item, user, shuffled):
        if name := names[signs.get((samples[left - 1], samples[right - 1]))]:
            outcomes[format_pair(left, right)] = name
    return {PAIRS_KEY: {"value": outcomes}} if outcomes else {}


def load_own_labels(samples: Sequence[str], user: User) -> LabelQuerySet:
    rows = Label.objects.active().filter(sample__in=samples, author=user.get_username(), source="human")
    own: LabelQuerySet = rows
    return own


def read_pair_labels(labels: Iterable[Label]) -> dict[tuple[str, str], int]:
    """Returns {(sample, other): 1, 0 or -1} of one person's labels, in both directions: 1 if the sample is better."""
    signs: dict[tuple[str, str], int] = {}
    for label in labels:
        sign = int(label.name == BETTER_QUESTION.key)
        for other in label.value:
            signs[label.sample, other], signs[other, label.sample] = sign, -sign
    return signs
