"""Run by the trainers' environment: compares what the plug-in builds from the dumps in argv with
what real verl unpickles.

Prints {path: "equal", or where the two differ, or why it was not built}, as JSON. While the plug-in builds, whatever
would unpickle raises.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from typing import Any
from unittest import mock

import torch
from verl.protocol import DataProto

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.trainers.verl.plugin import load_batch
from tests.trainers.equality import compare

METHOD = "VERL_DATAPROTO_SERIALIZATION_METHOD"


def load_with_verl(path: str) -> Any:
    if path.endswith(".pt"):
        return torch.load(path, weights_only=False)
    os.environ[METHOD] = "numpy" if "numpy" in path else "torch"
    return DataProto.load_from_disk(path)


def load_with_plugin(path: str) -> Any:
    os.environ[METHOD] = "neither"
    with (
        mock.patch("pickle.load", side_effect=AssertionError("unpickled")),
        mock.patch("pickle.loads", side_effect=AssertionError("unpickled")),
        mock.patch("torch.load", side_effect=AssertionError("unpickled")),
    ):
        return load_batch.load_native_batch(path)


def check_file(path: str) -> str:
    try:
        built = load_with_plugin(path)
    except SafePickleError as refused:
        return f"refused: {refused}"
    try:
        compare(load_with_verl(path), built, "")
    except (AssertionError, pickle.UnpicklingError) as error:
        return str(error)
    return "equal"


json.dump({path: check_file(path) for path in sys.argv[1:]}, sys.stdout)
