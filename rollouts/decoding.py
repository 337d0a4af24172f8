"""Text of token ids, by the run's own `tokenizer.json`, which came as an artifact.

The `tokenizers` library reads it: data, not code. Nothing is fetched from anywhere, and nothing of a model's repository
is run. Decoded as trainers decode for their dumps of text: without special tokens.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rollouts import blobs
from rollouts.models import Artifact, Run

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

FILE = "tokenizer.json"
MOST_BYTES = 128 << 20  # of a tokenizer.json; the largest vocabularies have a third of it
KEPT = 2  # in a process; a large vocabulary takes 100 MB
LARGEST_ID = 2**31


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
        return list(self.tokenizer.decode_batch(known, skip_special_tokens=skip))


def tokenizer_of(run: Run) -> Decoder | None:
    """The newest tokenizer of the run that is here and can be read; None where there is none."""
    ready = run.artifacts.filter(role="tokenizer", state=Artifact.State.READY).order_by("-ready_at", "-pk")
    for files in ready.values_list("files", flat=True):
        for path, file in sorted(files.items()):
            if PurePosixPath(path).name != FILE:
                continue
            try:
                if decoder := loaded(blobs.path(run.project_id, file["sha256"])):
                    return decoder
            except OSError as error:
                log.warning("The tokenizer of run %s is not on the disk: %s", run.uid, error)
    return None


def is_known(run: Run) -> bool:
    """Whether a tokenizer came with the run, without loading it."""
    return run.artifacts.filter(role="tokenizer", state=Artifact.State.READY).exists()


def pieces_of(run: Run, ids: Sequence[int] | None) -> list[str] | None:
    """The text of each token by itself; None without ids or a tokenizer."""
    decoder = tokenizer_of(run) if ids else None
    return decoder.pieces(ids) if decoder and ids else None


def command_for(run: Run) -> str:
    """What brings the run its tokenizer; empty where it has one."""
    if is_known(run):
        return ""
    named = shlex.join(["--project", run.project.slug, "--run", run.name])
    return f"rolloutdeck import --tokenizer PATH {named}"


@lru_cache(maxsize=KEPT)
def loaded(path: Path) -> Decoder | None:
    """None, and a line in the log, for a file that is none. The path names the content. Raises OSError."""
    from tokenizers import Tokenizer

    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        return Decoder(Tokenizer.from_str(path.read_text("utf-8")))
    except OSError:
        raise
    except BaseException as error:
        # The library is Rust: what it did not expect arrives as a PanicException, which is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        log.warning("The tokenizer %s cannot be read: %s", path.name[:12], error)
        return None
