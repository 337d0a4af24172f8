"""Reports the tokenizer of a run to the server, so that it can decode the steps that verl dumps as token ids."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run

TOKENIZER_FILE = "tokenizer.json"


def log_tokenizer(run: Run, tokenizer: Any) -> None:
    """Registers the tokenizer's file and sends it at once; a slow tokenizer has no file."""
    from rolloutdeck.protocol import compute_tokenizer_fingerprint, load_vocabulary

    path = find_tokenizer_file(tokenizer)
    if path is not None:
        facts = {"tokenizer": compute_tokenizer_fingerprint(load_vocabulary(path))}
        run.log_artifact(path, 0, "tokenizer", {"files": [TOKENIZER_FILE], "facts": facts}, send_now=True)


def find_tokenizer_file(tokenizer: Any) -> Path | None:
    """Returns the model's own file if it is on this machine, else a file written from the tokenizer; None for a slow
    one."""
    model_file = Path(str(getattr(tokenizer, "name_or_path", "") or "")) / TOKENIZER_FILE
    if model_file.is_file():
        return model_file.absolute()
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    folder = tempfile.mkdtemp(prefix="rolloutdeck-tokenizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, TOKENIZER_FILE)
    path.write_text(backend.to_str(), "utf-8")
    return path
