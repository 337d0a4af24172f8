"""Steps of runs, held against each other prompt by prompt."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import SPLITS
from rollouts.compare import (
    ComparedMean,
    ComparedPrompt,
    Comparison,
    ComparisonRow,
    ComparisonTarget,
    compare_steps,
    find_config_differences,
    load_comparison_targets,
)
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_choice


class Compare(APIView):
    """A comparison."""

    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "of": "Two to six cells `run@step` with commas between them: a run's id or name, a number or latest.",
            "split": "train or eval; eval where all runs have these steps of it, unless told.",
            "only": "A key of `outcomes` (letters of the cells that solve a prompt, or none), unjudged, or unpaired.",
        }
    }

    def get(self, request: Request) -> Response:
        """Figures per data source over the prompts that all cells answered, differences against the first with their
        95 % interval, the differing config, and the prompts, those with the widest change first."""
        query = parse_query_params(request, self)
        split = parse_choice(query.get("split"), "split", SPLITS, default="")
        found = load_comparison_targets(permissions.visible_runs(request), query.get("of", ""), split)
        if len(found) < 2:
            raise InvalidInputError("`of` needs two cells or more, like `of=run@200,other@latest`.", "of")
        result = compare_steps(found)
        only = parse_choice(query.get("only"), "only", (*result.outcomes, "unjudged", "unpaired"), default="")
        pages = ApiPagination()
        page = pages.paginate_queryset(result.list_rows(only), request, self) or []
        answer = pages.get_paginated_response([serialize_comparison_row(row) for row in page])
        return Response({**serialize_comparison(found, result), **dict(answer.data or {})})


def serialize_comparison(found: list[ComparisonTarget], result: Comparison) -> dict[str, Any]:
    return {
        "cells": [serialize_comparison_target(cell) for cell in found],
        "outcomes": result.outcomes,
        "unjudged": result.unevaluated_count,
        "paired_by_task": result.by_task,
        "unpaired": [len(left) for left in result.unpaired_prompts],
        "length_unit": result.unit,
        "truncated_inferred": result.truncation_inferred,
        "sources": [
            {
                "data_source": source.name or None,
                "prompts": source.prompts,
                "k": source.k,
                "figures": {
                    name: [serialize_statistic(one) for one in figures] for name, figures in source.statistics.items()
                },
            }
            for source in result.sources
        ],
        "config": [{"key": key, "values": values} for key, values in find_config_differences(found)],
    }


def serialize_comparison_target(cell: ComparisonTarget) -> dict[str, Any]:
    step = cell.step
    told = {"split": step.split, "step_kind": step.step_kind, "step": step.step}
    return {"letter": cell.letter, "run": cell.run.uid, "name": cell.run.name, **told}


def serialize_statistic(one: ComparedMean) -> dict[str, Any]:
    return {"value": one.value, "change": one.change, "interval": one.interval}


def serialize_comparison_row(row: ComparisonRow) -> dict[str, Any]:
    cells = [prompt and serialize_compared_prompt(prompt) for prompt in row.prompts]
    return {"right": row.solved_by, "change": row.change, "expected": row.ground_truths, "cells": cells}


def serialize_compared_prompt(prompt: ComparedPrompt) -> dict[str, Any]:
    return {
        "prompt_key": prompt.key,
        "data_source": prompt.source,
        "score": prompt.score,
        "right": prompt.correct_count,
        "judged": prompt.evaluated_count,
        "samples": prompt.ids,
    }
