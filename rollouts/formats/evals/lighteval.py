"""lighteval's details, `details_{task}_{time}.parquet`: a row for each document, with all responses to it.

| column                        | becomes                                                                      |
|-------------------------------|------------------------------------------------------------------------------|
| model_response: input         | prompt; `doc.query` if it is missing                                          |
| model_response: text          | one response each; of a multiple choice the likeliest choice                  |
| model_response: input_tokens  | prompt ids                                                                    |
| model_response: output_tokens | response ids                                                                  |
| metric                        | parts of the reward; the first is the score of each of the document's samples |
| doc: choices, gold_index      | ground truth                                                                  |
| doc: task_name                | data source                                                                   |

Source: `EvaluationTracker.save` in src/lighteval/logging/evaluation_tracker.py:246, src/lighteval/models/
model_output.py:29, huggingface/lighteval 3fd15266. Before version 0.11 the columns differ: such a file is a table.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.native import to_token_ids
from rollouts.formats.readers import (
    JsonObject,
    get_list,
    get_object,
    open_parquet,
    parse_prompt,
    provide_local_file,
    read_parquet_rows,
    to_jsonable,
)
from rollouts.formats.table import parse_json_text
from rollouts.samples import LineProblem, Record, to_float, to_integer, to_text

name = "lighteval"

FILE = re.compile(r"(?:.*/)?details_[^/]*\.parquet\Z", re.DOTALL)
COLUMNS = {"doc", "metric", "model_response"}


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(b"PAR1") and bool(FILE.match(filename))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    """Yields records in the order of the documents. Raises UnreadableDumpError if it is no file of details."""
    with provide_local_file(stream, context) as path, open_parquet(path) as file:
        if not set(file.schema_arrow.names) >= COLUMNS:
            raise UnreadableDumpError("It has no columns `doc`, `metric` and `model_response` of lighteval's details.")
        for number, row in enumerate(read_parquet_rows(file), 1):
            try:
                records = build_samples({key: to_jsonable(value) for key, value in row.items()}, str(number))
            except ValueError as error:
                yield LineProblem(number, str(error))
                continue
            for record in records:
                record.extras |= {} if context.step is not None else {"step": 0}
            yield from records


def build_samples(row: JsonObject, default_group: str) -> list[Record]:
    """Returns a record for each response to a document. Raises ValueError if there is none."""
    doc, output, metric = (get_object(row, key) for key in ("doc", "model_response", "metric"))
    prompt = output.get("input") or doc.get("query") or ""
    prompt_text, messages = parse_prompt(
        parse_json_text(prompt) if isinstance(prompt, str) and prompt.startswith('[{"') else prompt
    )
    texts = output.get("text") or choose_likeliest(doc, output)
    if not isinstance(texts, list) or not texts:
        raise ValueError("has neither a generated response nor a choice")
    tokens = get_list(output, "output_tokens")
    rewards = {key: real for key, value in metric.items() if (real := to_float(value)) is not None}
    records = []
    for index, text in enumerate(texts):
        response = text if isinstance(text, str) else ""
        record = Record(prompt_text, response, messages, next(iter(rewards.values()), None), dict(rewards))
        record.group, record.index = str(doc.get("id") or default_group), index
        record.ground_truth, record.data_source = get_ground_truth(doc), to_text(doc.get("task_name"))
        record.prompt_ids = to_token_ids(output.get("input_tokens")) or None
        record.response_ids = to_token_ids(tokens[index]) if len(tokens) == len(texts) else None
        record.extras |= {"specific": doc["specific"]} if doc.get("specific") else {}
        records.append(record)
    return records


def choose_likeliest(doc: JsonObject, output: JsonObject) -> list[Any]:
    """Returns the likeliest choice, for tasks that only score the likelihood of each choice."""
    choices, logprobs = get_list(doc, "choices"), [to_float(value) for value in output.get("logprobs") or []]
    if not choices or len(choices) != len(logprobs) or None in logprobs:
        return []
    return [choices[max(range(len(logprobs)), key=lambda index: logprobs[index] or 0.0)]]


def get_ground_truth(doc: JsonObject) -> str | None:
    """Returns the correct choices."""
    choices, gold = get_list(doc, "choices"), doc.get("gold_index")
    indexes = [to_integer(index) for index in (gold if isinstance(gold, list) else [gold])]
    correct = [choices[index] for index in indexes if index is not None and 0 <= index < len(choices)]
    return to_text(correct[0] if len(correct) == 1 else correct or None)
