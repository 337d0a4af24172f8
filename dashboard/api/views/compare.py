"""Steps of runs, compared prompt by prompt."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers import pick_fields
from rolloutdeck.protocol import SPLITS
from rollouts import compare
from rollouts.errors import InvalidInputError, TooLargeError


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
        95 % interval, the config differences, and the prompts, those with the largest change first. `all_samples` has
        the figures, sources and distributions of all samples of each step, paired or not; in `same_mix`, all steps are
        weighted to the sources of the first. `pairs_skipped` is the reason if steps are too large to be paired."""
        query = self.parse_query()
        split = query.choice("split", SPLITS)
        targets = compare.load_comparison_targets(permissions.visible_runs(request), query.get("of", ""), split)
        if len(targets) < 2:
            raise InvalidInputError("`of` needs at least two steps, for example `of=run@200,other@latest`.", "of")
        all_samples = compare.compare_all_samples(targets)
        comparison, skipped = pair_steps(targets)
        only = query.choice("only", (*comparison.outcomes, "unjudged", "unpaired"))
        extra = serialize_comparison(targets, comparison)
        extra |= {"pairs_skipped": skipped or None, "all_samples": serialize_all_samples(all_samples)}
        return self.paginate(comparison.list_rows(only), serialize_comparison_row, extra)


def pair_steps(targets: list[compare.ComparisonTarget]) -> tuple[compare.Comparison, str]:
    try:
        return compare.compare_steps(targets), ""
    except TooLargeError as error:
        return compare.build_empty_comparison(len(targets)), str(error)


def serialize_all_samples(result: compare.UnpairedComparison) -> dict[str, Any]:
    return {
        "samples": result.totals,
        "counted": result.counted,
        "prompts": result.prompts,
        "length_unit": result.unit,
        "truncated_inferred": result.truncation_inferred,
        "figures": [
            {
                "name": row.name,
                "all": list(map(serialize_mean, row.all)),
                "same_mix": row.mix and list(map(serialize_mean, row.mix)),
            }
            for row in result.rows
        ],
        "sources": [
            {
                "data_source": None if row.name == compare.OTHER_SOURCES else row.name,
                "other": row.name == compare.OTHER_SOURCES,
                "prompts": row.prompts,
                "shares": row.shares,
                "score": list(map(serialize_mean, row.scores)),
            }
            for row in result.sources
        ],
        "other_sources": result.small_sources,
        "distributions": {
            "same_mix" if view == compare.SAME_MIX else "all": [
                {
                    "name": chart.name,
                    "bins": [[place.low, place.high] for place in chart.bins],
                    "counts": chart.counts,
                    "shares": chart.shares,
                    "medians": chart.medians,
                }
                for chart in charts
            ]
            for view, charts in result.charts.items()
        },
    }


def serialize_mean(mean: compare.ComparedMean) -> dict[str, Any]:
    return {"value": mean.value, "change": mean.change, "interval": mean.interval}


def serialize_comparison(targets: list[compare.ComparisonTarget], comparison: compare.Comparison) -> dict[str, Any]:
    return {
        "cells": [serialize_comparison_target(target) for target in targets],
        "outcomes": comparison.outcomes,
        "unjudged": comparison.unevaluated_count,
        "paired_by_task": comparison.task_pair_count,
        "unpaired": [len(prompts) for prompts in comparison.unpaired_prompts],
        "length_unit": comparison.unit,
        "truncated_inferred": comparison.truncation_inferred,
        "sources": [
            {
                "data_source": source.name or None,
                "prompts": source.prompts,
                "k": source.k,
                "figures": {name: list(map(serialize_mean, means)) for name, means in source.statistics.items()},
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
