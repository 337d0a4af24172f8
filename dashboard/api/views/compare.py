"""Steps of runs, compared prompt by prompt."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers import pick_fields
from rolloutdeck.protocol import SPLITS
from rollouts import compare
from rollouts.errors import InvalidInputError


class Compare(ApiView):
    """A comparison."""

    paged = True
    takes = {
        "GET": {
            "of": "Two to six steps `run@step`, separated by commas: a run's id or name, and a number or latest.",
            "split": "train or eval. Default: eval if all runs have these steps of it.",
            "only": "A key of `outcomes` (letters of the steps that solve a prompt, or none), unjudged, or unpaired.",
        }
    }

    def get(self, request: Request) -> Response:
        """Statistics per data source over the prompts that all steps have, differences from the first step with their
        95 % interval, the config differences, and the prompts, those with the largest change first."""
        query = self.parse_query()
        split = query.choice("split", SPLITS)
        targets = compare.load_comparison_targets(permissions.visible_runs(request), query.get("of", ""), split)
        if len(targets) < 2:
            raise InvalidInputError("`of` needs at least two steps, for example `of=run@200,other@latest`.", "of")
        comparison = compare.compare_steps(targets)
        only = query.choice("only", (*comparison.outcomes, "unjudged", "unpaired"))
        extra = serialize_comparison(targets, comparison)
        return self.paginate(comparison.list_rows(only), serialize_comparison_row, extra)


def serialize_comparison(targets: list[compare.ComparisonTarget], comparison: compare.Comparison) -> dict[str, Any]:
    return {
        "cells": [serialize_comparison_target(target) for target in targets],
        "outcomes": comparison.outcomes,
        "unjudged": comparison.unevaluated_count,
        "paired_by_task": comparison.by_task,
        "unpaired": [len(prompts) for prompts in comparison.unpaired_prompts],
        "length_unit": comparison.unit,
        "truncated_inferred": comparison.truncation_inferred,
        "sources": [
            {
                "data_source": source.name or None,
                "prompts": source.prompts,
                "k": source.k,
                "figures": {
                    name: [{"value": mean.value, "change": mean.change, "interval": mean.interval} for mean in means]
                    for name, means in source.statistics.items()
                },
            }
            for source in comparison.sources
        ],
        "config": [{"key": key, "values": values} for key, values in compare.find_config_differences(targets)],
    }


def serialize_comparison_target(target: compare.ComparisonTarget) -> dict[str, Any]:
    step = pick_fields(target.step, "split", "step_kind", "step")
    return {"letter": target.letter, "run": target.run.uid, "name": target.run.name, **step}


def serialize_comparison_row(row: compare.ComparisonRow) -> dict[str, Any]:
    prompts = [prompt and serialize_compared_prompt(prompt) for prompt in row.prompts]
    return {"right": row.solved_by, "change": row.change, "expected": row.ground_truths, "cells": prompts}


def serialize_compared_prompt(prompt: compare.ComparedPrompt) -> dict[str, Any]:
    return {
        "prompt_key": prompt.key,
        "data_source": prompt.source,
        "score": prompt.score,
        "right": prompt.correct_count,
        "judged": prompt.evaluated_count,
        "samples": prompt.ids,
    }
