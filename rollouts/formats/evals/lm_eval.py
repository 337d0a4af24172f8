"""lm-evaluation-harness with `--log_samples`: `samples_{task}_{time}.jsonl`, a line for each document and filter.

| key                   | becomes                                                                                   |
|-----------------------|-------------------------------------------------------------------------------------------|
| arguments             | prompt: the context of the first request; messages if it is JSON of a chat                 |
| resps                 | a response for each repeat; of a multiple choice the likeliest choice                      |
| the keys in `metrics` | parts of the reward, with the filter's name if there is one; the first is the score         |
| doc_id, target        | group, ground truth                                                                        |

A document has one line per filter, with the same responses: the later lines add their metrics. Source:
`save_results_samples` in lm_eval/loggers/evaluation_tracker.py:321 and lm_eval/evaluator.py:640,
EleutherAI/lm-evaluation-harness 4e7e0d47.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.readers import JsonObject, parse_prompt, read_jsonl_rows
from rollouts.formats.table import parse_json_text
from rollouts.samples import LineProblem, Record, to_float, to_text

name = "lm-eval"

TASK = re.compile(r"(?:\A|/)samples_(?P<task>.+)_\d{4}-\d\d-\d\dT[^/]*\.jsonl\Z", re.DOTALL)
KEYS = (b'"doc_id"', b'"filtered_resps"')
EXTRA_KEYS = ("doc_id", "doc", "resps", "filtered_resps")
MAX_PENDING_CHARS = 256 << 20  # of samples that wait for the metrics of another filter


def sniff(filename: str, head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and all(key in head for key in KEYS)


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    pending, size = dict[tuple[str, str], list[Record]](), 0
    task = TASK.search(context.filename)
    for item in read_jsonl_rows(stream):
        if isinstance(item, LineProblem):
            yield item
            continue
        line, row = item
        key = (str(row.get("doc_id")), str(row.get("prompt_hash")))
        if key in pending:
            add_metrics(pending[key], row)
            continue
        try:
            records = build_samples(row)
        except ValueError as error:
            yield LineProblem(line, str(error))
            continue
        add_metrics(records, row)
        for record in records:
            record.data_source = task["task"] if task else None
            record.extras |= {} if context.step is not None else {"step": 0}
        size += sum(len(record.prompt) + len(record.response) for record in records)
        pending[key] = records
        if size > MAX_PENDING_CHARS:
            yield from chain.from_iterable(pending.values())
            pending, size = {}, 0
    yield from chain.from_iterable(pending.values())


def build_samples(row: JsonObject) -> list[Record]:
    """Returns a record for each response to a document. Raises ValueError if there is none."""
    requests = [to_list(request) for request in to_list(row.get("arguments"))]
    if not requests or not requests[0]:
        raise ValueError("has no `arguments`")
    context = requests[0][0]
    is_chat = isinstance(context, str) and context.startswith('[{"')
    prompt, messages = parse_prompt(parse_json_text(context) if is_chat else context)
    texts = get_responses(to_list(row.get("resps")), requests)
    records = [Record(prompt, text, messages, index=index) for index, text in enumerate(texts)]
    for record in records:
        record.group, record.ground_truth = to_text(row.get("doc_id")), to_text(row.get("target"))
        record.extras |= {key: row[key] for key in EXTRA_KEYS if row.get(key) is not None}
    return records


def to_list(value: Any) -> list[Any]:
    """Returns a list, also of an object with numbered keys: `gen_args_0`, `gen_args_1`."""
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def get_responses(responses: list[Any], requests: list[list[Any]]) -> list[str]:
    """Returns the generated texts, else the likeliest choice. Raises ValueError if there is neither."""
    if len(requests) == 1 and responses and (texts := to_list(responses[0])) and all(isinstance(t, str) for t in texts):
        return texts
    likelihoods = enumerate(map(get_log_likelihood, responses))
    index = max(((value, index) for index, value in likelihoods if value is not None), default=(0, len(requests)))[1]
    if index >= len(requests) or len(requests[index]) < 2:
        raise ValueError("has neither a generated response nor a choice")
    return [str(requests[index][1])]


def get_log_likelihood(response: Any) -> float | None:
    """Returns the log-likelihood of a choice: the first value in nested lists."""
    while isinstance(response, list) and response:
        response = response[0]
    return to_float(response)


def add_metrics(records: list[Record], row: JsonObject) -> None:
    """Adds the metrics of a line to each response of its document."""
    filter_name = row.get("filter")
    suffix = f",{filter_name}" if isinstance(filter_name, str) and filter_name != "none" else ""
    values = {key: to_float(row.get(key)) for key in to_list(row.get("metrics")) if isinstance(key, str)}
    known = {key: value for key, value in values.items() if value is not None}
    for record in records:
        record.rewards |= {f"{key}{suffix}": value for key, value in known.items()}
        if record.score is None:
            record.score = next(iter(known.values()), None)
