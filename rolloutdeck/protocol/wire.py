"""The wire contract between client and server, and the range of its versions that a server accepts."""

from __future__ import annotations

import re
from typing import Any, TypedDict

WIRE_VERSION = 1  # what this client sends, and the newest that this server accepts
MIN_WIRE_VERSION = 1  # the oldest that this server accepts: every released one

SPLITS = ("train", "eval")
STEP_KINDS = ("global_step", "rollout_id", "policy_version", "feed_index", "iteration")
TOKEN_SCOPES = ("ingest", "read", "annotate", "admin")
FLAG_LABELS = ("bad", "good", "unsure")
LABEL_SOURCES = ("human", "code", "model")
# The role of an artifact: the three roles of the trainers' rollout skip, and the tokenizer of its token ids.
ARTIFACT_ROLES = ("rollout", "rollout_tq", "async_rollout", "tokenizer")
PLAN_ACTIONS = ("cache", "repeat", "repeat_last")  # of a replay plan, see `schedule.py`
MISMATCH_ACTIONS = ("generate", "stop")  # what a run does if the pin of a step does not fit
REPLAY_OUTCOMES = ("hit", "miss", "refused")
SELECTION_SOURCES = ("flags", "rules")  # what selects samples of a pinned step: bad flags, or the guidance rules
# What a plan does with selected samples. `exclude` is the first action that the trainer supports.
SELECTED_ACTIONS = ("keep", "exclude", "mask", "drop", "regenerate")

# Every response of a Rolloutdeck server has this header. Without it, the response came from a proxy.
SERVER_HEADER = "X-Rolloutdeck"
# Request headers that identify the run, so that a server that does not know the run can create it. Values are
# percent-encoded UTF-8.
RUN_HEADER = "X-Rolloutdeck-Run"
PROJECT_HEADER = "X-Rolloutdeck-Project"
RESUME_HEADER = "X-Rolloutdeck-Resume"
WIRE_HEADER = "X-Rolloutdeck-Wire"
WAITED_HEADER = "X-Rolloutdeck-Waited"  # seconds that the end of an attempt waited in a spool; older servers ignore it

HEARTBEAT_SECONDS = 30
MAX_PART_BYTES = 8 << 20  # larger bodies are uploaded in resumable parts
MAX_DUMP_BYTES = 4 << 30  # one dump, uncompressed
MAX_ARTIFACT_FILE_BYTES = 64 << 30  # one file of an artifact
MAX_LINE_BYTES = 256 << 20  # one record
MAX_EXPANSION_RATIO = 200  # uncompressed bytes per compressed byte
MAX_JSON_BYTES = 16 << 20  # body of a JSON request
# Of a result of a re-score. The server refuses a number from this one on, and shortens the rest.
MAX_RESULT_NUMBER = 1e100
MAX_RESULT_PARTS = 12
ACCURACY_PART = "acc"  # the part that says whether a sample is correct: kept whatever its place
MAX_RESULT_PART_NAME_CHARS = 40
MAX_RESULT_PART_TEXT_CHARS = 200
MAX_RESULT_RATIONALE_CHARS = 4000
MAX_TEXT_ANSWER_CHARS = 10_000  # of a label
MAX_AUTHOR_CHARS = 150  # of a label: the name of a user, a function or a model

# Keys of `Run.log_samples` with a defined meaning. Other keys are stored unchanged.
SAMPLE_KEYS = (
    "prompt", "response", "score", "rewards", "messages", "group", "index", "trajectory", "turn", "ground_truth",
    "data_source", "finish_reason", "truncated", "prompt_ids", "response_ids", "response_mask", "logprobs",
    "ref_logprobs", "advantages", "policy_version", "timing", "metrics", "segments", "tools",
)  # fmt: skip
# Another key of a row: how many samples of its step with the same prompt and response were in earlier calls of
# `Run.log_samples`. Without it, equal samples of two calls are one sample that was sent twice.
EARLIER_EQUAL_KEY = "earlier_equal_samples"

UID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
# The attempt key of a process whose launcher has no id: what the processes of a launch have in common, the rank, a hash
# of the process that started it, and a random part.
LAUNCH_KEY_PATTERN = re.compile(
    r"launch-(?P<launch>[0-9a-f]{20})-(?P<rank>[0-9]{1,6})-(?P<starter>[0-9a-f]{8})-[0-9a-f]{12}\Z"
)
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}\Z")


class SpoolHeader(TypedDict, total=False):
    """The first line of a spool file. The request body follows it.

    kind: `dump`, `metrics`, `run`, `context`, `artifact`, `replay` or `finish`.
    query: the query parameters of the request.
    run: the body of `POST runs/`, so that each file can create its run.
    dropped: number of items that the spool has dropped so far, by reason.
    """

    wire: int
    kind: str
    project: str
    uid: str
    name: str
    attempt: str
    sha256: str
    bytes: int
    query: dict[str, Any]
    run: dict[str, Any]
    dropped: dict[str, int]


class Receipt(TypedDict):
    """The server's response after it has stored a dump durably."""

    sha256: str
    bytes: int


def describe_wire_mismatch(header: str) -> str:
    """Returns why a server does not accept a client with this WIRE_HEADER, "" if it does. Without one it does."""
    if not header or (header.isdecimal() and MIN_WIRE_VERSION <= int(header[:9]) <= WIRE_VERSION):
        return ""
    accepted = f"{MIN_WIRE_VERSION}" if MIN_WIRE_VERSION == WIRE_VERSION else f"{MIN_WIRE_VERSION} to {WIRE_VERSION}"
    is_newer = header.isdecimal() and int(header[:9]) > WIRE_VERSION
    older = "Upgrade the server." if is_newer else "Upgrade the client: pip install --upgrade rolloutdeck."
    return f"The client speaks version {header[:9]} of the protocol, this server accepts {accepted}. {older}"
