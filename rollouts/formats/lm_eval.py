"""lm-evaluation-harness with `--log_samples`: `samples_{task}_{time}.jsonl`, a line for each document and filter.

| key                   | becomes                                                                                   |
|-----------------------|-------------------------------------------------------------------------------------------|
| arguments             | prompt: the context of the first request; messages where it is JSON of a chat              |
| resps                 | a response for each repeat; of a multiple choice the choice that is likeliest               |
| the keys in `metrics` | parts of the reward, with the filter's name where there is one; the first is the score      |
| doc_id, target        | group, ground truth                                                                        |

A document stands in the file once for each filter, with the same responses: its later lines add their metrics. Source:
`save_results_samples` in lm_eval/loggers/evaluation_tracker.py:321 and lm_eval/evaluator.py:640,
EleutherAI/lm-evaluation-harness 4e7e0d47.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.formats.base import DumpContext
from rollouts.formats.readers.jsonl import parse_prompt, read_jsonl_rows
from rollouts.formats.table.mapping import parse_json_text
from rollouts.samples import LineProblem, Record, to_float, to_text

name = "lm-eval"

TASK = re.compile(r"(?:\A|/)samples_(?P<task>.+)_\d{4}-\d\d-\d\dT[^/]*\.jsonl\Z", re.DOTALL)
KEYS = (b'"doc_id"', b'"filtered_resps"')
KEPT = ("doc_id", "doc", "resps", "filtered_resps")
MOST_HELD = 256 << 20  # characters of samples that wait for what another filter says of them

Row = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and all(key in head for key in KEYS)


def read(stream: BinaryIO, told: DumpContext) -> Iterator[Record | LineProblem]:
    """Records in the order of the documents. Raises UnreadableDump when no line holds an object."""
    held, size = dict[tuple[str, str], list[Record]](), 0
    task = TASK.search(told.filename)
    for found in read_jsonl_rows(stream):
        if isinstance(found, LineProblem):
            yield found
            continue
        line, row = found
        key = (str(row.get("doc_id")), str(row.get("prompt_hash")))
        if key in held:
            measure(held[key], row)
            continue
        try:
            made = samples(row)
        except ValueError as error:
            yield LineProblem(line, str(error))
            continue
        measure(made, row)
        for record in made:
            record.data_source = task["task"] if task else None
            record.extras |= {} if told.step is not None else {"step": 0}
        size += sum(len(record.prompt) + len(record.response) for record in made)
        held[key] = made
        if size > MOST_HELD:
            yield from (record for records in held.values() for record in records)
            held, size = {}, 0
    yield from (record for records in held.values() for record in records)


def samples(row: Row) -> list[Record]:
    """A record for each response to a document. Raises ValueError."""
    requests = [listed(one) for one in listed(row.get("arguments"))]
    if not requests or not requests[0]:
        raise ValueError("has no `arguments`")
    asked, known = parse_prompt(parse_json_text(requests[0][0]) if is_chat(requests[0][0]) else requests[0][0])
    texts = said(listed(row.get("resps")), requests)
    made = [Record(asked, text, known, index=place) for place, text in enumerate(texts)]
    for record in made:
        record.group, record.ground_truth = to_text(row.get("doc_id")), to_text(row.get("target"))
        record.extras |= {key: row[key] for key in KEPT if row.get(key) is not None}
    return made


def listed(value: Any) -> list[Any]:
    """A list, also where it is an object whose keys count: `gen_args_0`, `gen_args_1`."""
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def is_chat(value: Any) -> bool:
    return isinstance(value, str) and value.startswith('[{"')


def said(responses: list[Any], requests: list[list[Any]]) -> list[str]:
    """The texts that were generated, else the likeliest of the choices. Raises ValueError."""
    if len(requests) == 1 and responses and (texts := listed(responses[0])) and all(isinstance(t, str) for t in texts):
        return texts
    scored = [(value, place) for place, one in enumerate(responses) if (value := likelihood(one)) is not None]
    place = max(scored)[1] if scored else len(requests)
    if place >= len(requests) or len(requests[place]) < 2:
        raise ValueError("holds no response that was generated or chosen")
    return [str(requests[place][1])]


def likelihood(response: Any) -> float | None:
    """The log-likelihood of a choice: it stands first, in lists of one."""
    while isinstance(response, list) and response:
        response = response[0]
    return to_float(response)


def measure(made: list[Record], row: Row) -> None:
    """The metrics of a line, for each response of its document."""
    among = row.get("filter")
    ending = f",{among}" if isinstance(among, str) and among != "none" else ""
    found = {str(key): to_float(row.get(key)) for key in listed(row.get("metrics")) if isinstance(key, str)}
    known = {key: value for key, value in found.items() if value is not None}
    for record in made:
        record.rewards |= {f"{key}{ending}": value for key, value in known.items()}
        if record.score is None:
            record.score = next(iter(known.values()), None)
