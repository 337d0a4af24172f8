"""The reward of a run compared with what people say."""

from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.views.review.agreement import serialize_estimate
from rollouts import reward_check
from rollouts.agreement import RATES, Cell, RateChange, RewardCheck
from rollouts.models import Run

CELLS = ("rewarded_good", "rewarded_bad", "unrewarded_good", "unrewarded_bad")


class RunRewardCheck(ApiView):
    """The reward of a run compared with people."""

    takes = {
        "GET": {
            "question": "Key of a question with choices, yes and no, or a rating; the first one by default.",
            "good": "Answers that call a sample good, separated by commas; by default the first one.",
            "threshold": "A sample is rewarded from this score on; by default the best threshold.",
            "steps": "Steps that count, such as 41-80; all by default.",
            "against": "Id of another run: `changes` and `rates` have the difference of each rate.",
            "than": "Other steps to compare with, such as 1-40; those of `steps` by default.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """Confusion of label and score, weighted by the chance of the draw, with 95 % intervals; by reward part and by
        data source; suspected reward hacks and missed good answers; what changed in another run or other steps, and
        the `sides` that are compared (`found`: their first and last step). `outdated_answers` do not fit the question
        as it is now, and do not count. Nor do `undecided_samples`, on which people disagree."""
        query = self.parse_query()
        run = permissions.run_or_404(request, uid)
        selection = parse_reward_selection(request, run, query)
        labelled = reward_check.load_labelled_run(run, selection.asked, selection.steps)
        report = reward_check.build_report(labelled, selection.threshold)
        data: dict[str, Any] = {
            "question": selection.asked.question.key,
            "good_answers": sorted(selection.asked.good),
            "best_threshold": report.best,
            "outdated_answers": report.outdated,
            "undecided_samples": report.undecided,
            **serialize_check(report.check),
            "parts": {name: serialize_check(check) for name, check in report.parts.items()},
            "sources": {name: serialize_check(check) for name, check in report.sources.items()},
        }
        if selection.is_comparison:
            second = reward_check.build_second_report(selection, report)
            data["outdated_answers"] += second.outdated
            data["undecided_samples"] += second.undecided
            data["sides"] = reward_check.list_sides(selection)
            changes = reward_check.compare_reports(report, second)
            data["changes"] = {name: serialize_change(change) for name, change in changes.items()}
            rates = reward_check.compare_rates(selection, report, second)
            data["rates"] = [
                {"kind": rate.kind, "title": rate.title, "answer": rate.detail, "q": rate.q}
                | serialize_change(rate.change)
                for rate in rates
                if rate.kind != "reward"
            ]
        return Response(data)


def parse_reward_selection(request: Request, run: Run, values: Mapping[str, str]) -> reward_check.RewardSelection:
    """Raises InvalidInputError, and Http404 if the user may not see the run `against`."""
    return reward_check.parse_selection(
        run,
        reader=permissions.require_user(request).pk,
        good=[value.strip() for value in values.get("good", "").split(",") if value.strip()],
        other=permissions.run_or_404(request, values["against"]) if values.get("against") else None,
        **{name: values.get(name, "") for name in ("question", "threshold", "steps", "than")},
    )


def serialize_change(change: RateChange) -> dict[str, Any]:
    estimates = {name: serialize_estimate(getattr(change, name)) for name in ("first", "second", "change")}
    return {**estimates, "is_clear": change.is_clear}


def serialize_check(check: RewardCheck) -> dict[str, Any]:
    plain = ("threshold", "labelled", "hand_picked", "population", "effective_size", "suspected_hacks", "missed_good")
    return {
        **{name: getattr(check, name) for name in plain},
        **{name: serialize_cell(getattr(check, name)) for name in CELLS},
        **{name: serialize_estimate(getattr(check, name)) for name in RATES},
    }


def serialize_cell(cell: Cell) -> dict[str, Any]:
    return {"labelled": cell.labelled, "share": serialize_estimate(cell.share), "total": cell.total}
