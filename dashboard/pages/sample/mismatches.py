"""Why a sample is an answer mismatch, and where in the text its answers are."""

from dataclasses import dataclass, field

from django.utils.translation import gettext as _

from dashboard.pages.common import MIN_STREAMED_CHARS, SampleRow, find_answers
from rollouts.models import Sample
from rollouts.samples import SampleBody, extract_final_answer, extract_text_answer, read_ground_truth


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`expected` is answer `position` of `total` in the response; 0 if it is none, or if the response is so long that
    only its end was searched. `labels` name the last answer and the one that the grader took, by their position in the
    text."""

    expected: str
    got: str
    position: int
    total: int
    labels: dict[int, str] = field(default_factory=dict)


def find_mismatch(sample: Sample, body: SampleBody) -> Mismatch | None:
    """None if the sample is no answer mismatch."""
    if not SampleRow(sample).has_answer_mismatch:
        return None
    start = max(0, len(body.response) - MIN_STREAMED_CHARS)
    matches = find_answers(body.response, start)
    answers = [(match.start(), extract_text_answer(match.group())) for match in matches]
    answers = [(at, answer) for at, answer in answers if answer]
    expected = read_ground_truth(sample.expected)
    texts = [answer for _, answer in answers]
    position = texts.index(expected) + 1 if expected in texts and not start else 0
    last = sample.answer or ""
    labels = label_answers(answers, expected, extract_final_answer("", {**body.rewards, **body.extras}), last)
    return Mismatch(expected, last, position, len(answers), labels)


def label_answers(answers: list[tuple[int, str]], expected: str, logged: str, last: str) -> dict[int, str]:
    """The answer that the grader logged, else the first one that equals the ground truth; and the last answer."""
    labels: dict[int, str] = {}
    taken = [at for at, answer in answers if answer == (logged or expected)]
    if taken and logged:
        labels[taken[-1]] = _("the grader’s answer")
    elif taken:
        labels[taken[0]] = _("the grader’s answer (it equals the ground truth)")
    if ends := [at for at, answer in answers if answer == last]:
        is_taken = ends[-1] in labels
        labels[ends[-1]] = _("last answer in the text, and the grader’s") if is_taken else _("last answer in the text")
    return labels
