"""The tokenizer of a run, told to the server so that it can decode the steps that verl dumps as token ids."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run

FILE = "tokenizer.json"


def log_tokenizer(run: Run, tokenizer: Any) -> None:
    """Registers the file and sends it at once; a slow tokenizer has none."""
    from rolloutdeck.protocol import compute_tokenizer_fingerprint, load_vocabulary

    path = file_of(tokenizer)
    if path is not None:
        facts = {"tokenizer": compute_tokenizer_fingerprint(load_vocabulary(path))}
        run.log_artifact(path, 0, "tokenizer", {"files": [FILE], "facts": facts}, send_now=True)


def file_of(tokenizer: Any) -> Path | None:
    """The model's own file where it lies on this machine, else one written from the tokenizer."""
    own = Path(str(getattr(tokenizer, "name_or_path", "") or "")) / FILE
    if own.is_file():
        return own.absolute()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    folder = tempfile.mkdtemp(prefix="rolloutdeck-tokenizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, FILE)
    path.write_text(backend.to_str(), "utf-8")
    return path
