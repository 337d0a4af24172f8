"""Logs of inspect_ai: `{time}_{task}_{id}.json`, one object, or `.eval`, a zip with `samples/{id}_epoch_{n}.json`.

| key of a sample     | becomes                                                                                      |
|---------------------|----------------------------------------------------------------------------------------------|
| messages            | prompt up to the first answer; the rest is the response, with tool calls and results         |
| input, output       | prompt and response if there are no messages                                                 |
| scores              | parts of the reward; the first is the score. C, I, P and N are 1, 0, 0.5 and 0                |
| id, epoch           | group, index                                                                                 |
| target, stop_reason | ground truth, finish reason                                                                  |

A score that is an object (`{"accuracy": 1, "style": 0.5}`) gives one reward part per key. `attachments` stores long
texts once; they replace their references. `events` and `events_data` repeat the same messages and are excluded. A
sample that ended in an error before the model answered is skipped. Members are compressed with zstd since 0.3.206. A
sample that was run again has two members with the same name, and the last one counts. Source: `EvalSample` in
src/inspect_ai/log/_log.py:400, src/inspect_ai/log/_recorders/eval.py:1241, UKGovernmentBEIS/inspect_ai 499e6152.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import (
    HEADER_MAGIC,
    JsonObject,
    ZipReader,
    chat,
    get_list,
    get_object,
    parse_json_document,
    provide_local_file,
    read_json_document,
    render_content,
)
from rollouts.samples import LineProblem, Record, SkippedRow, describe_json_type, to_float, to_integer, to_text

name = "inspect"

HEAD = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')
MEMBER = re.compile(r"samples/.*\.json\Z", re.DOTALL)
GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
ATTACHMENT = "attachment://"
EXTRA_KEYS = ("id", "epoch", "metadata", "limit", "model_usage", "total_time", "working_time")
REPEATED_KEYS = ("events", "events_data", "attachments")
MAX_DEPTH = 40
NO_SAMPLES = "The log has no samples: the evaluation did not log them, or did not run."
TRUNCATED = "the zip is truncated here: the samples that followed are lost"
FAILED = SkippedRow("a sample that ended in an error before the model answered")


def sniff(filename: str, head: bytes) -> bool:
    return bool(HEAD.match(head)) or (head.startswith(HEADER_MAGIC) and filename.endswith(".eval"))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
    """Yields records in the order of the samples. Raises UnreadableDumpError if no sample can be read."""
    samples, first = 0, ""
    for number, (task, sample) in enumerate(read_samples(stream, context), 1):
        result = sample if isinstance(sample, str) else convert_sample(sample)
        if isinstance(result, str):
            first = first or result
            yield LineProblem(number, result)
            continue
        samples += 1
        if isinstance(result, Record):
            result.data_source = to_text(task)
            result.extras |= {} if context.step is not None else {"step": 0}
        yield result
    if not samples:
        raise UnreadableDumpError(f"No sample can be read. The first: {first}." if first else NO_SAMPLES)


def read_samples(stream: BinaryIO, context: DumpContext) -> Iterator[tuple[Any, Any]]:
    """Yields the task and each sample, or the reason as text why it cannot be read. Raises UnreadableDumpError."""
    if context.filename.endswith(".eval"):
        yield from read_archive(stream, context)
        return
    log = read_json_document(stream)[0]
    for sample in get_list(log, "samples"):
        problem = "" if isinstance(sample, dict) else f"is {describe_json_type(sample)}, not an object"
        yield get_object(log, "eval").get("task"), problem or sample


def read_archive(stream: BinaryIO, context: DumpContext) -> Iterator[tuple[Any, Any]]:
    with provide_local_file(stream, context) as path:
        archive = ZipReader(path)
        header = next((name for name in ("header.json", "_journal/start.json") if name in archive.members), "")
        task = get_object(read_member(archive, header), "eval").get("task") if header else None
        for member in sorted(filter(MEMBER.match, archive.members)):
            yield task, read_member(archive, member)
        if archive.is_truncated:
            yield task, TRUNCATED


def read_member(archive: ZipReader, name: str) -> JsonObject | str:
    """Returns the object in a member, else the reason as text. Raises UnreadableDumpError."""
    try:
        body = archive.read(name)
    except ValueError as error:
        return f"{name[:80]} {error}"
    try:
        value = parse_json_document(body)[0]
    except UnreadableDumpError:
        return f"{name[:80]} is not JSON"
    return value if isinstance(value, dict) else f"{name[:80]} is {describe_json_type(value)}, not an object"


def convert_sample(sample: JsonObject) -> Record | SkippedRow | str:
    """Returns a sample, else the reason as text."""
    try:
        record = build_record(restore_attachments(sample, get_object(sample, "attachments")))
    except ValueError as error:
        return str(error)
    return FAILED if sample.get("error") and not record.response else record


def restore_attachments(value: Any, attached: JsonObject, depth: int = 0) -> Any:
    """Returns the value with its long texts, and without events and attachments."""
    if isinstance(value, str):
        return attached.get(value.removeprefix(ATTACHMENT), value) if value.startswith(ATTACHMENT) else value
    if depth > MAX_DEPTH or not attached and depth:
        return value
    if isinstance(value, list):
        return [restore_attachments(inner, attached, depth + 1) for inner in value]
    if not isinstance(value, dict):
        return value
    excluded = REPEATED_KEYS if not depth else ()
    return {key: restore_attachments(inner, attached, depth + 1) for key, inner in value.items() if key not in excluded}


def build_record(sample: JsonObject) -> Record:
    """Converts a sample. Raises ValueError if it has neither messages nor an output."""
    output, messages = get_object(sample, "output"), sample.get("messages")
    if messages and chat.is_conversation(messages):
        record = Record(*chat.render_conversation(messages), messages)
    else:
        completion = output.get("completion")
        if not isinstance(completion, str):
            raise ValueError("has neither `messages` nor an output")
        record = Record(*chat.parse_prompt_response(sample.get("input"), completion))
    record.rewards = dict(read_scores(get_object(sample, "scores")))
    record.score = next((value for value in record.rewards.values() if value is not None), None)
    record.group, record.ground_truth = to_text(sample.get("id")), to_text(sample.get("target"))
    epoch = to_integer(sample.get("epoch"))
    record.index = epoch - 1 if epoch else None
    choice = next(iter(get_list(output, "choices")), None)
    record.finish_reason = to_text(choice.get("stop_reason")) if isinstance(choice, dict) else None
    record.truncated = record.finish_reason == "max_tokens" if record.finish_reason else None
    given = {key: sample.get(key) for key in (*EXTRA_KEYS, "scores")}
    record.extras |= {key: value for key, value in given.items() if value not in (None, "", {})}
    if error := sample.get("error"):
        record.extras["error"] = get_object(sample, "error").get("message", error)
    if output.get("model"):
        record.extras["model"] = render_content(output["model"])
    return record


def read_scores(scores: JsonObject) -> Iterator[tuple[str, float | None]]:
    """Yields the reward parts: the value of each scorer, one part per key if a scorer has several values."""
    for name, score in scores.items():
        value = score.get("value") if isinstance(score, dict) else score
        if isinstance(value, dict):
            yield from ((f"{name}/{key}", parse_grade(inner)) for key, inner in value.items())
        else:
            yield name, parse_grade(value)


def parse_grade(value: Any) -> float | None:
    return GRADES[value] if isinstance(value, str) and value in GRADES else to_float(value)
