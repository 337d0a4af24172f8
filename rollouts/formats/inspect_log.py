"""Logs of inspect_ai: `{time}_{task}_{id}.json`, one object, or `.eval`, a zip with `samples/{id}_epoch_{n}.json`.

| key of a sample     | becomes                                                                                      |
|---------------------|----------------------------------------------------------------------------------------------|
| messages            | prompt up to the first answer, then the response, with tool calls and results                |
| input, output       | prompt and response where there are no messages                                              |
| scores              | parts of the reward; the first is the score. C, I, P and N are 1, 0, 0.5 and 0                |
| id, epoch           | group, index                                                                                 |
| target, stop_reason | ground truth, finish reason                                                                  |

A score that is an object (`{"accuracy": 1, "style": 0.5}`) is a part for each key. Long texts stand once in
`attachments` and are put back where they belong; `events` and `events_data`, which tell of the same messages once more,
are left out. A sample that ended in an error before the model said anything is none. Members are packed with zstd since
0.3.206; a sample that was run again stands twice under its name, and the last one counts. Source: `EvalSample` in
src/inspect_ai/log/_log.py:400, src/inspect_ai/log/_recorders/eval.py:1241, UKGovernmentBEIS/inspect_ai 499e6152.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import chat, json_document
from rollouts.formats.readers.jsonl import render_content
from rollouts.formats.readers.seekable import provide_local_file
from rollouts.formats.readers.zip_members import ZipReader
from rollouts.samples import LineProblem, Record, SkippedRow, describe_json_type, to_float, to_integer, to_text

name = "inspect"

HEAD = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')
ZIP = b"PK\x03\x04"
MEMBER = re.compile(r"samples/.*\.json\Z", re.DOTALL)
GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
ATTACHED = "attachment://"
KEPT = ("id", "epoch", "metadata", "limit", "model_usage", "total_time", "working_time")
AGAIN = ("events", "events_data", "attachments")
DEEPEST = 40
NO_SAMPLES = "It is a log without samples: the evaluation was not told to log them, or never ran."
CUT = "the zip breaks off here: what came behind is not in the file"
FAILED = SkippedRow("a sample that ended in an error before the model answered")

Thing = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) or (head.startswith(ZIP) and filename.endswith(".eval"))


def read(stream: BinaryIO, told: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    """Records in the order of the samples. Raises UnreadableDump when it is no log, or no sample of it can be read."""
    good, first = 0, ""
    for number_, (task, sample) in enumerate(found(stream, told), 1):
        made = sample if isinstance(sample, str) else told_of(sample)
        if isinstance(made, str):
            first = first or made
            yield LineProblem(number_, made)
            continue
        good += 1
        if isinstance(made, Record):
            made.data_source = to_text(task)
            made.extras |= {} if told.step is not None else {"step": 0}
        yield made
    if not good:
        raise UnreadableDumpError(f"No sample of it can be read; the first: {first}." if first else NO_SAMPLES)


def found(stream: BinaryIO, told: DumpContext) -> Iterator[tuple[Any, Any]]:
    """The task and each sample of a log, a text for one that can't be had: why. Raises UnreadableDump."""
    if told.filename.endswith(".eval"):
        yield from zipped(stream, told)
        return
    log = json_document.read_json_document(stream)[0]
    samples = log.get("samples") if isinstance(log, dict) else None
    for sample in samples if isinstance(samples, list) else ():
        yield (
            part(log, "eval").get("task"),
            sample if isinstance(sample, dict) else f"is {describe_json_type(sample)}, not an object",
        )


def zipped(stream: BinaryIO, told: DumpContext) -> Iterator[tuple[Any, Any]]:
    with provide_local_file(stream, told) as path:
        archive = ZipReader(path)
        header = next((one for one in ("header.json", "_journal/start.json") if one in archive.found), "")
        about = member(archive, header) if header else None
        task = part(about, "eval").get("task")
        for one in sorted(filter(MEMBER.match, archive.found)):
            yield task, member(archive, one)
        if archive.cut:
            yield task, CUT


def member(archive: ZipReader, name: str) -> Thing | str:
    """The object that a member holds, else why it can't be had. Raises UnreadableDump."""
    try:
        body = archive.read(name)
    except ValueError as error:
        return f"{name[:80]} {error}"
    try:
        value = json_document.parse_json_document(body)[0]
    except UnreadableDumpError:
        return f"{name[:80]} is not JSON"
    return value if isinstance(value, dict) else f"{name[:80]} is {describe_json_type(value)}, not an object"


def told_of(sample: Thing) -> Record | SkippedRow | str:
    """A sample, else why there is none."""
    try:
        made = record(restored(sample, part(sample, "attachments")))
    except ValueError as error:
        return str(error)
    return FAILED if sample.get("error") and not made.response else made


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
    left_out = AGAIN if not depth else ()
    return {key: restored(inner, attached, depth + 1) for key, inner in value.items() if key not in left_out}


def record(sample: Thing) -> Record:
    """Raises ValueError."""
    output, talk = part(sample, "output"), sample.get("messages")
    choices = output.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    if talk and chat.is_conversation(talk):
        at = chat.find_response_start(talk)
        made = Record(chat.render_prompt(talk[:at]), chat.render_response(talk[at:]), talk)
    else:
        said = output.get("completion")
        if not isinstance(said, str):
            raise ValueError("has neither `messages` nor an output")
        made = Record(*chat.parse_prompt_response(sample.get("input"), said))
    made.rewards = dict(graded(part(sample, "scores")))
    made.score = next((value for value in made.rewards.values() if value is not None), None)
    made.group, made.ground_truth = to_text(sample.get("id")), to_text(sample.get("target"))
    epoch = to_integer(sample.get("epoch"))
    made.index = epoch - 1 if epoch else None
    made.finish_reason = to_text(choice.get("stop_reason"))
    made.truncated = made.finish_reason == "max_tokens" if made.finish_reason else None
    made.extras |= {key: sample[key] for key in KEPT if sample.get(key)}
    made.extras |= {"scores": sample["scores"]} if sample.get("scores") else {}
    made.extras |= {"error": part(sample, "error").get("message", sample["error"])} if sample.get("error") else {}
    made.extras |= {"model": render_content(output["model"])} if output.get("model") else {}
    return made


def graded(scores: Thing) -> Iterator[tuple[str, float | None]]:
    """The parts of the reward: what each scorer said, and each of the values of one that said several."""
    for name, score in scores.items():
        value = score.get("value") if isinstance(score, dict) else score
        if isinstance(value, dict):
            yield from ((f"{name}/{key}", grade(inner)) for key, inner in value.items())
        else:
            yield name, grade(value)


def grade(value: Any) -> float | None:
    return GRADES[value] if isinstance(value, str) and value in GRADES else to_float(value)
