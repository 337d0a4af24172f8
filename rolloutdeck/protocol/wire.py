"""The contract between the trainer side and the server: words, limits and shapes. Standard library only.

A server accepts every wire version ever released.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

WIRE_VERSION = 1

SPLITS = ("train", "eval")
STEP_KINDS = ("global_step", "rollout_id", "policy_version", "feed_index", "iteration")
TOKEN_SCOPES = ("ingest", "read", "annotate", "admin")
FLAG_LABELS = ("bad", "good", "unsure")
# What an artifact is for: the three roles of a rollout skip, and the tokenizer that its token ids belong to.
ARTIFACT_ROLES = ("rollout", "rollout_tq", "async_rollout", "tokenizer")
PLAN_ACTIONS = ("cache", "repeat", "repeat_last")  # of a replay plan, see `resolution.py`
MISMATCH_ACTIONS = ("generate", "stop")  # what a run does at a step whose pin does not fit it
REPLAY_OUTCOMES = ("hit", "miss", "refused")

# Every answer of a Rolloutdeck server carries this header; without it the answer came from something in between.
SERVER_HEADER = "X-Rolloutdeck"
# The client says with these who it is, so that a server that never saw the run can create it. Values are
# percent-encoded UTF-8.
RUN_HEADER = "X-Rolloutdeck-Run"
PROJECT_HEADER = "X-Rolloutdeck-Project"
RESUME_HEADER = "X-Rolloutdeck-Resume"
WIRE_HEADER = "X-Rolloutdeck-Wire"

HEARTBEAT_SECONDS = 30
MAX_PART_BYTES = 8 << 20  # bodies above this travel in resumable parts
MAX_DUMP_BYTES = 4 << 30  # one dump, plain bytes
MAX_ARTIFACT_FILE_BYTES = 64 << 30  # one file of an artifact
MAX_LINE_BYTES = 256 << 20  # one record
MAX_EXPANSION_RATIO = 200  # plain bytes per compressed byte
MAX_JSON_BYTES = 16 << 20  # body of an ordinary JSON request

# Keys of `Run.log_samples` with a meaning of their own; every other key is kept as it is.
SAMPLE_KEYS = (
    "prompt", "response", "score", "rewards", "messages", "group", "index", "trajectory", "turn", "ground_truth",
    "data_source", "finish_reason", "truncated", "prompt_ids", "response_ids", "response_mask", "logprobs",
    "ref_logprobs", "advantages", "policy_version", "timing", "metrics", "segments", "tools",
)  # fmt: skip

UID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
SHA256_PATTERN = re.compile(r"[0-9a-f]{64}\Z")


class SpoolHeader(TypedDict, total=False):
    """First line of a spool file; the body follows it byte for byte.

    `kind` is `dump`, `metrics`, `run`, `artifact`, `replay` or `finish`; `query` holds the query parameters of the
    request; `run` what `POST runs/` needs, so that any one file can create its run; `dropped` counts by reason what
    the spool had to leave out so far.
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
    """What the server answers to a dump it has made durable."""

    sha256: str
    bytes: int
