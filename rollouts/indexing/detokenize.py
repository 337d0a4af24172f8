"""Decodes token ids to text with the run's own `tokenizer.json`, which arrives as an artifact.

The `tokenizers` library reads the file as data. Nothing is downloaded, and no code of a model's repository runs. Text
is decoded without special tokens, as trainers do for their text dumps.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rollouts.lib import CacheSize, cached
from rollouts.models import Artifact, Run
from rollouts.storage import fetch_blob

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER_FILE_BYTES = 128 << 20  # the largest vocabularies have a third of it
MAX_TOKEN_ID = 2**31 - 1
MAX_DECODER_STEPS = 8  # one after the other; each may double a text
MAX_TOKEN_CHARS = 4096  # the longest tokens of known vocabularies are runs of a few hundred spaces


class Decoder:
    """A loaded tokenizer. Unknown ids are decoded to an empty text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def decode_rows(self, rows: Sequence[Sequence[int]], *, skip_special: bool = True) -> list[str]:
        known = [[token for token in row if 0 <= token <= MAX_TOKEN_ID] for row in rows]
        with convert_rust_panics():
            return list(self.tokenizer.decode_batch(known, skip_special_tokens=skip_special))

    def decode_each(self, ids: Sequence[int]) -> list[str]:
        """Decodes each token by itself, special tokens to their names, a part of a character to U+FFFD."""
        return self.decode_rows([[token] for token in ids], skip_special=False)


@contextmanager
def convert_rust_panics() -> Iterator[None]:
    """Raises ValueError instead of the library's PanicException, which is not a subclass of Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the library failed: {error}") from error


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Raises ValueError if decoding could take very long or much memory. Any user can upload a tokenizer file."""
    if max(map(len, tokenizer.get_vocab()), default=0) > MAX_TOKEN_CHARS:
        raise ValueError(f"it has a token of more than {MAX_TOKEN_CHARS} characters")
    steps = [json.loads(tokenizer.decoder.__getstate__())] if tokenizer.decoder else []
    for step in steps:
        steps += step.get("decoders", ())  # a sequence contains further steps
        if step["type"] == "Replace" and "Regex" in step["pattern"]:
            raise ValueError("it decodes by a regular expression")
        if step["type"] == "Replace" and len(step["content"]) > len(step["pattern"]["String"]):
            raise ValueError("it decodes by a replacement that makes text longer")
    if len(steps) > MAX_DECODER_STEPS:
        raise ValueError(f"it decodes in more than {MAX_DECODER_STEPS} steps")


def load_tokenizer(run: Run) -> Decoder | None:
    """Returns the newest stored tokenizer of the run that can be read, or None."""
    ready = run.artifacts.filter(role="tokenizer", state=Artifact.State.READY).order_by("-ready_at", "-pk")
    for files in ready.values_list("files", flat=True):
        for path, file in sorted(files.items()):
            if PurePosixPath(path).name != TOKENIZER_FILE:
                continue
            try:
                if decoder := load_tokenizer_file(fetch_blob(run.project_id, file["sha256"])):
                    return decoder
            except OSError as error:
                log.warning("The tokenizer of run %s is not on the disk: %s", run.uid, error)
    return None


def decode_tokens(run: Run, ids: Sequence[int] | None) -> list[str] | None:
    """Returns the text of each token by itself, or None if there are no ids or no tokenizer."""
    decoder = load_tokenizer(run) if ids else None
    return decoder.decode_each(ids) if decoder and ids else None


def build_tokenizer_command(run: Run) -> str:
    """Returns the command that uploads the run's tokenizer. Empty if the run has one."""
    if run.artifacts.filter(role="tokenizer", state=Artifact.State.READY).exists():
        return ""
    options = shlex.join(["--project", run.project.slug, "--run", run.name])
    return f"rolloutdeck import --tokenizer PATH {options}"


@cached(CacheSize.DECODERS)
def load_tokenizer_file(path: Path) -> Decoder | None:
    """Returns None and logs a warning if it is not a tokenizer. The path identifies the content. Raises OSError."""
    from tokenizers import Tokenizer

    try:
        if path.stat().st_size > MAX_TOKENIZER_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_TOKENIZER_FILE_BYTES} bytes")
        with convert_rust_panics():
            tokenizer = Tokenizer.from_str(path.read_text("utf-8"))
            check_tokenizer(tokenizer)
        return Decoder(tokenizer)
    except OSError:
        raise
    except Exception as error:
        log.warning("The tokenizer %s cannot be read: %s", path.name[:12], error)
        return None
