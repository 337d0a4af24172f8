"""Logs of inspect_ai: `{time}_{task}_{id}.json`, one object, or `.eval`, a zip with `samples/{id}_epoch_{n}.json`.

| key of a sample     | becomes                                                                                      |
|---------------------|----------------------------------------------------------------------------------------------|
| messages            | prompt up to the first answer, then the response, with tool calls and results                |
| input, output       | prompt and response where there are no messages                                              |
| scores              | parts of the reward; the first is the score. C, I, P and N are 1, 0, 0.5 and 0                |
| id, epoch           | group, index                                                                                 |
| target, stop_reason | ground truth, finish reason                                                                  |

Long texts stand once in `attachments` and are put back where they belong; `events`, which tell of the same messages
once more, are left out. Source: `EvalSample` in src/inspect_ai/log/_log.py, UKGovernmentBEIS/inspect_ai.
"""

from __future__ import annotations

import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from rolloutdeck import wire
from rollouts.errors import UnreadableDump
from rollouts.formats import chat, whole_json
from rollouts.formats.at_hand import at_hand
from rollouts.formats.base import Told
from rollouts.formats.jsonl import content_text, integer, kind, number, told_text
from rollouts.records import Problem, Record

name = "inspect"

HEAD = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')
ZIP = b"PK\x03\x04"
MEMBER = re.compile(r"samples/.*\.json\Z", re.DOTALL)
GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
ATTACHED = "attachment://"
KEPT = ("id", "epoch", "metadata", "error", "limit", "model_usage", "total_time", "working_time")
DEEPEST = 40
# What opening a zip and its members may raise: a RuntimeError where one is locked, or packed as Python cannot unpack.
BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, ValueError, OSError, EOFError)
NO_SAMPLES = "It is a log without samples: the evaluation was not told to log them, or never ran."

Thing = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) or (head.startswith(ZIP) and filename.endswith(".eval"))


def read(stream: BinaryIO, told: Told) -> Iterator[Record | Problem]:
    """Records in the order of the samples. Raises UnreadableDump when it is no log."""
    for number_, (task, sample) in enumerate(found(stream, told), 1):
        if not isinstance(sample, dict):
            yield Problem(number_, f"is {kind(sample)}, not an object")
            continue
        try:
            made = record(restored(sample, part(sample, "attachments")))
        except ValueError as error:
            yield Problem(number_, str(error))
            continue
        made.data_source = told_text(task)
        made.extras |= {} if told.step is not None else {"step": 0}
        yield made


def found(stream: BinaryIO, told: Told) -> Iterator[tuple[Any, Any]]:
    """The task and each sample of a log. Raises UnreadableDump."""
    if told.filename.endswith(".eval"):
        yield from zipped(stream, told)
        return
    log = whole_json.value(stream)[0]
    samples = log.get("samples") if isinstance(log, dict) else None
    if not isinstance(samples, list) or not samples:
        raise UnreadableDump(NO_SAMPLES)
    yield from ((part(log, "eval").get("task"), sample) for sample in samples)


def zipped(stream: BinaryIO, told: Told) -> Iterator[tuple[Any, Any]]:
    with at_hand(stream, told) as path:
        try:
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
                header = next((one for one in ("header.json", "_journal/start.json") if one in names), "")
                task = part(member(archive, header), "eval").get("task") if header else None
                samples = sorted(filter(MEMBER.match, names))
                for one in samples:
                    yield task, member(archive, one)
        except BROKEN as error:
            raise UnreadableDump(
                f"It is no log that can be read: {str(error)[:200] or type(error).__name__}."
            ) from error
    if not samples:
        raise UnreadableDump(NO_SAMPLES)


def member(archive: zipfile.ZipFile, one: str) -> Any:
    """Raises ValueError."""
    if archive.getinfo(one).file_size > wire.MAX_LINE_BYTES:
        raise ValueError(f"{one[:80]} unpacks to more than {wire.MAX_LINE_BYTES >> 20} MiB")
    with archive.open(one) as file:
        body = file.read(wire.MAX_LINE_BYTES + 1)
    return json.loads(body)


def part(value: Any, key: str) -> Thing:
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def restored(value: Any, attached: Thing, depth: int = 0) -> Any:
    """The value with its long texts; events and attachments are gone."""
    if isinstance(value, str):
        return attached.get(value.removeprefix(ATTACHED), value) if value.startswith(ATTACHED) else value
    if depth > DEEPEST or not attached and depth:
        return value
    if isinstance(value, list):
        return [restored(inner, attached, depth + 1) for inner in value]
    if not isinstance(value, dict):
        return value
    left_out = ("events", "attachments") if not depth else ()
    return {key: restored(inner, attached, depth + 1) for key, inner in value.items() if key not in left_out}


def record(sample: Thing) -> Record:
    """Raises ValueError."""
    output, talk = part(sample, "output"), sample.get("messages")
    choices = output.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    if talk and chat.is_talk(talk):
        at = chat.parted(talk)
        made = Record(chat.asked(talk[:at]), chat.answered(talk[at:]), talk)
    else:
        said = output.get("completion")
        if not isinstance(said, str):
            raise ValueError("has neither `messages` nor an output")
        made = Record(*chat.exchanged(sample.get("input"), said))
    made.rewards = {key: graded(value) for key, value in part(sample, "scores").items()}
    made.score = next((value for value in made.rewards.values() if value is not None), None)
    made.group, made.ground_truth = told_text(sample.get("id")), told_text(sample.get("target"))
    epoch = integer(sample.get("epoch"))
    made.index = epoch - 1 if epoch else None
    made.finish_reason = told_text(choice.get("stop_reason"))
    made.truncated = made.finish_reason == "max_tokens" if made.finish_reason else None
    made.extras |= {key: sample[key] for key in KEPT if sample.get(key)}
    made.extras |= {"scores": sample["scores"]} if sample.get("scores") else {}
    made.extras |= {"model": content_text(output["model"])} if output.get("model") else {}
    return made


def graded(score: Any) -> float | None:
    """The value of a score: a number, or a grade."""
    value = score.get("value") if isinstance(score, dict) else score
    return GRADES[value] if isinstance(value, str) and value in GRADES else number(value)
