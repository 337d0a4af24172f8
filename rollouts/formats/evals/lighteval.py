"""lighteval's details, `details_{task}_{time}.parquet`: a row for each document, with all responses to it.

| column                        | becomes                                                                      |
|-------------------------------|------------------------------------------------------------------------------|
| model_response: input         | prompt; `doc.query` if it is missing                                          |
| model_response: text          | a response each; of a multiple choice the choice that is likeliest            |
| model_response: output_tokens | response ids                                                                  |
| metric                        | parts of the reward; the first is the score of each of the document's samples |
| doc: choices, gold_index      | ground truth                                                                  |
| doc: task_name                | data source                                                                   |

Source: `EvaluationTracker.save` in src/lighteval/logging/evaluation_tracker.py:246, src/lighteval/models/
model_output.py:29, huggingface/lighteval 3fd15266. Details of before version 0.11 have other columns and are a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_token_ids
from rollouts.formats.readers.jsonl import parse_prompt
from rollouts.formats.readers.parquet import open_parquet, read_parquet_rows
from rollouts.formats.readers.seekable import provide_local_file
from rollouts.formats.readers.values import to_jsonable
from rollouts.formats.table.mapping import parse_json_text
from rollouts.samples import LineProblem, Record, to_float, to_integer, to_text

name = "lighteval"

FILE = re.compile(r"(?:.*/)?details_[^/]*\.parquet\Z", re.DOTALL)
COLUMNS = {"doc", "metric", "model_response"}

JsonObject = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(b"PAR1") and bool(FILE.match(filename))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    """Yields records in the order of the documents. Raises UnreadableDumpError if it is no file of details."""
    with provide_local_file(stream, context) as path, open_parquet(path) as file:
        if not set(file.schema_arrow.names) >= COLUMNS:
            raise UnreadableDumpError(
                "It holds no details of lighteval: it has no columns `doc`, `metric`, `model_response`."
            )
        for number, row in enumerate(read_parquet_rows(file), 1):
            try:
                made = samples({key: to_jsonable(value) for key, value in row.items()}, str(number))
            except ValueError as error:
                yield LineProblem(number, str(error))
                continue
            for record in made:
                record.extras |= {} if context.step is not None else {"step": 0}
            yield from made


def samples(row: JsonObject, place: str) -> list[Record]:
    """Returns a record for each response to a document. Raises ValueError if there is none."""
    doc, output, metric = (to_object(row.get(key)) for key in ("doc", "model_response", "metric"))
    prompt = output.get("input") or doc.get("query") or ""
    prompt_text, messages = parse_prompt(
        parse_json_text(prompt) if isinstance(prompt, str) and prompt.startswith('[{"') else prompt
    )
    texts = output.get("text") or choose_likeliest(doc, output)
    if not isinstance(texts, list) or not texts:
        raise ValueError("holds no response that was generated or chosen")
    tokens = output.get("output_tokens")
    rewards = {key: real for key, value in metric.items() if (real := to_float(value)) is not None}
    made = []
    for index, text in enumerate(texts):
        record = Record(
            prompt_text, text if isinstance(text, str) else "", messages, next(iter(rewards.values()), None)
        )
        record.rewards, record.group, record.index = dict(rewards), str(doc.get("id") or place), index
        record.ground_truth, record.data_source = get_ground_truth(doc), to_text(doc.get("task_name"))
        record.response_ids = (
            to_token_ids(tokens[index]) if isinstance(tokens, list) and len(tokens) == len(texts) else None
        )
        record.extras |= {"specific": doc["specific"]} if doc.get("specific") else {}
        made.append(record)
    return made


def to_object(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def choose_likeliest(doc: JsonObject, output: JsonObject) -> list[Any]:
    """Returns the likeliest choice, for tasks that only score the likelihood of each choice."""
    choices, likely = doc.get("choices"), [to_float(one) for one in output.get("logprobs") or []]
    if not isinstance(choices, list) or len(choices) != len(likely) or None in likely:
        return []
    return [choices[max(range(len(likely)), key=lambda place: likely[place] or 0.0)]]


def get_ground_truth(doc: JsonObject) -> str | None:
    """Returns the correct choices."""
    choices, gold = doc.get("choices"), doc.get("gold_index")
    places = [to_integer(one) for one in (gold if isinstance(gold, list) else [gold])]
    if not isinstance(choices, list):
        return None
    right = [choices[place] for place in places if place is not None and 0 <= place < len(choices)]
    return to_text(right[0] if len(right) == 1 else right or None)
