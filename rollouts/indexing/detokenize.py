"""Text of token ids, by the run's own `tokenizer.json`, which came as an artifact.

The `tokenizers` library reads it: data, not code. Nothing is fetched from anywhere, and nothing of a model's repository
is run. Decoded as trainers decode for their dumps of text: without special tokens.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rollouts.lib import MAX_DECODERS, cached
from rollouts.models import Artifact, Run
from rollouts.storage import get_blob_path

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

FILE = "tokenizer.json"
MAX_TOKENIZER_FILE_BYTES = 128 << 20  # of a tokenizer.json; the largest vocabularies have a third of it
LARGEST_ID = 2**31
MOST_DECODERS = 8  # one after the other; each may double a text
LONGEST_TOKEN = 4096  # characters; the longest of known vocabularies are runs of a few hundred spaces


class Decoder:
    """A loaded tokenizer. Ids that it does not have decode to nothing."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids, special tokens left out."""
        return self.decoded(rows, skip=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token by itself, special ones by name; a token that is a part of a character shows as U+FFFD."""
        return self.decoded([[token] for token in ids], skip=False)

    def decoded(self, rows: Sequence[Sequence[int]], skip: bool) -> list[str]:
        known = [[token for token in row if 0 <= token < LARGEST_ID] for row in rows]
        with rust():
            return list(self.tokenizer.decode_batch(known, skip_special_tokens=skip))


@contextmanager
def rust() -> Iterator[None]:
    """What the library did not expect arrives as a PanicException, which is no Exception; here it is a ValueError."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the library ended on it: {error}") from error


def check(tokenizer: Tokenizer) -> None:
    """Raises ValueError for one whose texts could take for ever, or all memory: its file is anybody's."""
    if max(map(len, tokenizer.get_vocab()), default=0) > LONGEST_TOKEN:
        raise ValueError(f"it has a token of more than {LONGEST_TOKEN} characters")
    steps = [json.loads(tokenizer.decoder.__getstate__())] if tokenizer.decoder else []
    for step in steps:
        steps += step.get("decoders", ())  # a sequence has more of them
        if step["type"] == "Replace" and "Regex" in step["pattern"]:
            raise ValueError("it decodes by a regular expression")
        if step["type"] == "Replace" and len(step["content"]) > len(step["pattern"]["String"]):
            raise ValueError("it decodes by a replacement that makes text longer")
    if len(steps) > MOST_DECODERS:
        raise ValueError(f"it decodes in more than {MOST_DECODERS} steps")


def load_tokenizer(run: Run) -> Decoder | None:
    """The newest tokenizer of the run that is here and can be read; None where there is none."""
    ready = run.artifacts.filter(role="tokenizer", state=Artifact.State.READY).order_by("-ready_at", "-pk")
    for files in ready.values_list("files", flat=True):
        for path, file in sorted(files.items()):
            if PurePosixPath(path).name != FILE:
                continue
            try:
                if decoder := load_tokenizer_file(get_blob_path(run.project_id, file["sha256"])):
                    return decoder
            except OSError as error:
                log.warning("The tokenizer of run %s is not on the disk: %s", run.uid, error)
    return None


def is_known(run: Run) -> bool:
    """Whether a tokenizer came with the run, without loading it."""
    return run.artifacts.filter(role="tokenizer", state=Artifact.State.READY).exists()


def decode_tokens(run: Run, ids: Sequence[int] | None) -> list[str] | None:
    """The text of each token by itself; None without ids or a tokenizer."""
    decoder = load_tokenizer(run) if ids else None
    return decoder.pieces(ids) if decoder and ids else None


def build_tokenizer_command(run: Run) -> str:
    """What brings the run its tokenizer; empty where it has one."""
    if is_known(run):
        return ""
    named = shlex.join(["--project", run.project.slug, "--run", run.name])
    return f"rolloutdeck import --tokenizer PATH {named}"


@cached(MAX_DECODERS)
def load_tokenizer_file(path: Path) -> Decoder | None:
    """None, and a line in the log, for a file that is none. The path names the content. Raises OSError."""
    from tokenizers import Tokenizer

    try:
        if path.stat().st_size > MAX_TOKENIZER_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_TOKENIZER_FILE_BYTES} bytes")
        with rust():
            found = Tokenizer.from_str(path.read_text("utf-8"))
            check(found)
        return Decoder(found)
    except OSError:
        raise
    except Exception as error:
        log.warning("The tokenizer %s cannot be read: %s", path.name[:12], error)
        return None
