"""lighteval's details, `details_{task}_{time}.parquet`: a row for each document, with all responses to it.

| column                        | becomes                                                                      |
|-------------------------------|------------------------------------------------------------------------------|
| model_response: input         | prompt; `doc.query` where it is not kept                                      |
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

from rollouts.errors import UnreadableDump
from rollouts.formats.base import Told
from rollouts.formats.native import ids
from rollouts.formats.readers.jsonl import prompt_of
from rollouts.formats.readers.parquet import opened, rows
from rollouts.formats.readers.seekable import at_hand
from rollouts.formats.readers.values import plain
from rollouts.formats.table.mapping import unpacked
from rollouts.samples.record import Problem, Record
from rollouts.samples.values import integer, number, told_text

name = "lighteval"

FILE = re.compile(r"(?:.*/)?details_[^/]*\.parquet\Z", re.DOTALL)
COLUMNS = {"doc", "metric", "model_response"}

Thing = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(b"PAR1") and bool(FILE.match(filename))


def read(stream: BinaryIO, told: Told) -> Iterator[Record | Problem]:
    """Records in the order of the documents. Raises UnreadableDump when it is no file of details."""
    with at_hand(stream, told) as path, opened(path) as file:
        if not set(file.schema_arrow.names) >= COLUMNS:
            raise UnreadableDump(
                "It holds no details of lighteval: it has no columns `doc`, `metric`, `model_response`."
            )
        for number_, row in enumerate(rows(file), 1):
            try:
                made = samples({key: plain(value) for key, value in row.items()}, str(number_))
            except ValueError as error:
                yield Problem(number_, str(error))
                continue
            for record in made:
                record.extras |= {} if told.step is not None else {"step": 0}
            yield from made


def samples(row: Thing, place: str) -> list[Record]:
    """A record for each response to a document. Raises ValueError."""
    doc, said, metric = (thing(row.get(key)) for key in ("doc", "model_response", "metric"))
    prompt = said.get("input") or doc.get("query") or ""
    asked, known = prompt_of(unpacked(prompt) if isinstance(prompt, str) and prompt.startswith('[{"') else prompt)
    texts = said.get("text") or chosen(doc, said)
    if not isinstance(texts, list) or not texts:
        raise ValueError("holds no response that was generated or chosen")
    tokens = said.get("output_tokens")
    rewards = {key: real for key, value in metric.items() if (real := number(value)) is not None}
    made = []
    for index, text in enumerate(texts):
        record = Record(asked, text if isinstance(text, str) else "", known, next(iter(rewards.values()), None))
        record.rewards, record.group, record.index = dict(rewards), str(doc.get("id") or place), index
        record.ground_truth, record.data_source = truth(doc), told_text(doc.get("task_name"))
        record.response_ids = ids(tokens[index]) if isinstance(tokens, list) and len(tokens) == len(texts) else None
        record.extras |= {"specific": doc["specific"]} if doc.get("specific") else {}
        made.append(record)
    return made


def thing(value: Any) -> Thing:
    return value if isinstance(value, dict) else {}


def chosen(doc: Thing, said: Thing) -> list[Any]:
    """The choice that is likeliest, where the model was only asked how likely each is."""
    choices, likely = doc.get("choices"), [number(one) for one in said.get("logprobs") or []]
    if not isinstance(choices, list) or len(choices) != len(likely) or None in likely:
        return []
    return [choices[max(range(len(likely)), key=lambda place: likely[place] or 0.0)]]


def truth(doc: Thing) -> str | None:
    """The right choices."""
    choices, gold = doc.get("choices"), doc.get("gold_index")
    places = [integer(one) for one in (gold if isinstance(gold, list) else [gold])]
    if not isinstance(choices, list):
        return None
    right = [choices[place] for place in places if place is not None and 0 <= place < len(choices)]
    return told_text(right[0] if len(right) == 1 else right or None)
