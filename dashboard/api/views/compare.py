"""Steps of runs, held against each other prompt by prompt."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api.pagination import Pages
from dashboard.api.parsers import asked
from dashboard.api.schema import Takes
from rolloutdeck.protocol import wire
from rollouts.compare import compare
from rollouts.compare.compare import Comparison, Figure, Row
from rollouts.compare.pairing import Prompt
from rollouts.compare.targets import Cell
from rollouts.errors import BadInput
from rollouts.lib.validation import one_of


class Compare(APIView):
    """A comparison."""

    paged = True
    takes: ClassVar[Takes] = {
        "GET": {
            "of": "Two to six cells `run@step` with commas between them: a run's id or name, a number or latest.",
            "split": "train or eval; eval where all runs have these steps of it, unless told.",
            "only": "A key of `outcomes` (letters of the cells that solve a prompt, or none), unjudged, or unpaired.",
        }
    }

    def get(self, request: Request) -> Response:
        """Figures per data source over the prompts that all cells answered, differences against the first with their
        95 % interval, the differing config, and the prompts, those with the widest change first."""
        query = asked(request, self)
        split = one_of(query.get("split"), "split", wire.SPLITS, default="")
        found = compare.cells(permissions.visible_runs(request), query.get("of", ""), split)
        if len(found) < 2:
            raise BadInput("`of` needs two cells or more, like `of=run@200,other@latest`.", "of")
        result = compare.compare(found)
        only = one_of(query.get("only"), "only", (*result.outcomes, "unjudged", "unpaired"), default="")
        pages = Pages()
        page = pages.paginate_queryset(result.rows(only), request, self) or []
        answer = pages.get_paginated_response([shown_row(row) for row in page])
        return Response({**whole(found, result), **dict(answer.data or {})})


def whole(found: list[Cell], result: Comparison) -> dict[str, Any]:
    return {
        "cells": [shown_cell(cell) for cell in found],
        "outcomes": result.outcomes,
        "unjudged": result.unjudged,
        "paired_by_task": result.by_task,
        "unpaired": [len(left) for left in result.left],
        "length_unit": result.unit,
        "truncated_inferred": result.inferred,
        "sources": [
            {
                "data_source": source.name or None,
                "prompts": source.prompts,
                "k": source.k,
                "figures": {name: [figure(one) for one in figures] for name, figures in source.figures.items()},
            }
            for source in result.sources
        ],
        "config": [{"key": key, "values": values} for key, values in compare.settings(found)],
    }


def shown_cell(cell: Cell) -> dict[str, Any]:
    step = cell.step
    told = {"split": step.split, "step_kind": step.step_kind, "step": step.step}
    return {"letter": cell.letter, "run": cell.run.uid, "name": cell.run.name, **told}


def figure(one: Figure) -> dict[str, Any]:
    return {"value": one.value, "change": one.change, "interval": one.interval}


def shown_row(row: Row) -> dict[str, Any]:
    cells = [prompt and shown_prompt(prompt) for prompt in row.prompts]
    return {"right": row.right, "change": row.change, "expected": row.truths, "cells": cells}


def shown_prompt(prompt: Prompt) -> dict[str, Any]:
    return {
        "prompt_key": prompt.key,
        "data_source": prompt.source,
        "score": prompt.score,
        "right": prompt.right,
        "judged": prompt.judged,
        "samples": prompt.ids,
    }
