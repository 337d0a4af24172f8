"""The arguments of `rescore` and `judge`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rolloutdeck.cli.common import add_run_arguments, add_server_arguments
from rolloutdeck.protocol import SPLITS, STEP_KINDS


def _add_query_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    add = parser.add_argument_group("which samples").add_argument
    add("--split", choices=SPLITS, default="", help="default: both")
    add("--step", default="all", help="a step number, latest, or all (default)")
    add("--step-kind", choices=STEP_KINDS, default="", help="what the number of --step counts")
    add("--attempt", default="", help="default: the attempt that is current at each step")
    add("--q", default="", metavar="QUERY", help="search query as in the web UI; default: all samples")
    add("--limit", type=int, metavar="N", help="stop after N samples")


def _add_result_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    add = parser.add_argument_group("the results").add_argument
    add(
        "--name",
        default=default,
        metavar="NAME",
        help=f"column of the results, for queries and charts; default: {default}",
    )
    above_help = "a sample is correct above this number; default: if the function returns acc=1, else above 0"
    add("--correct-above", type=float, metavar="NUMBER", help=above_help)
    add("--replace", action="store_true", help="delete the results that another version stored under this name")


def add_rescore_arguments(parser: argparse.ArgumentParser) -> None:
    fn_help = "the function: FILE.py:NAME or package.module:NAME, with the arguments data_source, solution_str, "
    fn_help += "ground_truth, extra_info or their plurals"
    parser.add_argument("--fn", required=True, metavar="FILE:NAME", help=fn_help)
    _add_query_arguments(parser)
    _add_result_arguments(parser, "score.v2")
    add = parser.add_argument_group("calls").add_argument
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    add("--workers", type=int, default=workers, metavar="N", help=f"processes; default: one per core ({workers})")
    timeout_help = "limit of one call; its process is killed and the others go on; default: 30"
    add("--timeout", type=float, default=30.0, metavar="SECONDS", help=timeout_help)
    add("--retry", action="store_true", help="also samples whose stored result is an error")
    add("--data-source", default="", metavar="NAME", help="for samples without one, for example openai/gsm8k")
    add("--json-ground-truth", action="store_true", help="parse ground truths that are JSON")
    add(
        "--batch-size", type=int, default=64, metavar="N", help="samples in one call with plural arguments; default: 64"
    )
    add_server_arguments(parser)


def add_judge_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    endpoint_help = "an OpenAI-compatible server, for example http://localhost:8000/v1"
    add("--endpoint", required=True, metavar="URL", help=endpoint_help)
    add("--model", required=True, metavar="NAME", help="the model of the endpoint; it is the author of the labels")
    asked = parser.add_mutually_exclusive_group()
    rubric_help = "ask questions of the project's rubric: their keys, separated by commas; default: all"
    asked.add_argument("--rubric", nargs="?", const="", default=None, metavar="KEY,…", help=rubric_help)
    prompt_help = "file with the instructions, with {prompt}, {response}, {ground_truth} and {data_source}; the model "
    prompt_help += 'answers {"score": NUMBER, "rationale": TEXT}'
    asked.add_argument("--prompt", type=Path, metavar="FILE", help=prompt_help)
    score_help = "the question whose answer is the number; default: the first that has one"
    add("--score", default="", metavar="KEY", help=score_help)
    add("--good", default="", metavar="A,B", help="choices that count as 1, others as 0; default: the first choice")
    _add_query_arguments(parser)
    _add_result_arguments(parser, "score.judge")
    add = parser.add_argument_group("calls").add_argument
    key_help = "variable of your shell with the key of the endpoint; the server never gets it; default: OPENAI_API_KEY"
    add("--key-env", default="OPENAI_API_KEY", metavar="NAME", help=key_help)
    add("--concurrency", type=int, default=8, metavar="N", help="calls at the same time; default: 8")
    add("--timeout", type=float, default=120.0, metavar="SECONDS", help="limit of one call; default: 120")
    retries_help = "tries of a call that the endpoint refuses (429, 5xx), with growing pauses; default: 6"
    add("--tries", type=int, default=6, metavar="N", help=retries_help)
    add("--max-tokens", type=int, default=1024, metavar="N", help="of an answer and its thoughts; default: 1024")
    body_help = 'more fields of the request as JSON; null removes one, for example {"max_tokens": null}'
    add("--body", default="", metavar="JSON", help=body_help)
    retry_help = "also samples that were sent without an answer, and those with an error"
    add("--retry", action="store_true", help=retry_help)
    journal_help = "file that remembers every call of one judge; default: in ~/.rolloutdeck/judge, one per re-score"
    add("--journal", type=Path, metavar="FILE", help=journal_help)
    add_server_arguments(parser)
