"""The reward of a run compared with what people say."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params
from dashboard.api.views.queue_agreement import serialize_estimate
from rollouts import reward_check
from rollouts.agreement import RATES, Cell, RewardCheck
from rollouts.errors import InvalidInputError

CELLS = ("rewarded_good", "rewarded_bad", "unrewarded_good", "unrewarded_bad")


class RunRewardCheck(ApiView):
    """The reward of a run compared with people."""

    takes = {
        "GET": {
            "question": "Key of a question with choices, yes and no, or a rating; the first one by default.",
            "good": "Answers that call a sample good, separated by commas; by default the first one.",
            "threshold": "A sample is rewarded from this score on; by default the best threshold.",
            "steps": "Steps that count, such as 41-80; all by default.",
            "against": "Id of another run: `changes` has the difference of each rate, with the same threshold.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """Confusion of label and score, weighted by the chance of the draw, with 95 % intervals; by reward part and by
        data source; suspected reward hacks and missed good answers."""
        query = self.parse_query()
        run = permissions.run_or_404(request, uid)
        good = [value.strip() for value in query.get("good", "").split(",") if value.strip()]
        asked = reward_check.parse_reward_question(run.project, query.get("question", ""), good)
        steps = parse_steps(query)
        report = reward_check.build_report(
            reward_check.load_labelled_run(run, asked, steps), parse_threshold(query.get("threshold", ""))
        )
        data: dict[str, Any] = {
            "question": asked.question.key,
            "good": sorted(asked.good),
            "best_threshold": report.best,
            **serialize_check(report.check),
            "parts": {name: serialize_check(check) for name, check in report.parts.items()},
            "sources": {name: serialize_check(check) for name, check in report.sources.items()},
        }
        if "against" in query:
            other = permissions.run_or_404(request, query["against"])
            labelled = reward_check.load_labelled_run(other, asked, steps)
            second = reward_check.build_report(labelled, report.check.threshold)
            changes = reward_check.compare_reports(report, second)
            data["changes"] = {
                name: {
                    "first": serialize_estimate(change.first),
                    "second": serialize_estimate(change.second),
                    "change": serialize_estimate(change.change),
                    "is_clear": change.is_clear,
                }
                for name, change in changes.items()
            }
        return Response(data)


def parse_threshold(text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e300:
        raise InvalidInputError("`threshold` must be a number.", "threshold")
    return value


def parse_steps(query: Params) -> tuple[int, int] | None:
    text = query.get("steps", "")
    if not text:
        return None
    first, _dash, last = text.partition("-")
    numbers = [int(part) for part in (first, last or first) if part.isdecimal() and len(part) < 10]
    if len(numbers) < 2 or numbers[0] > numbers[1]:
        raise InvalidInputError("`steps` must be a range such as 41-80.", "steps")
    return numbers[0], numbers[1]


def serialize_check(check: RewardCheck) -> dict[str, Any]:
    plain = ("threshold", "labelled", "hand_picked", "population", "effective_size", "suspected_hacks", "missed_good")
    return {
        **{name: getattr(check, name) for name in plain},
        **{name: serialize_cell(getattr(check, name)) for name in CELLS},
        **{name: serialize_estimate(getattr(check, name)) for name in RATES},
    }


def serialize_cell(cell: Cell) -> dict[str, Any]:
    return {"labelled": cell.labelled, "share": serialize_estimate(cell.share), "total": cell.total}
