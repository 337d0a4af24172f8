"""Processor time of forty fresh imports of the plug-in after verl, and of asyncio next to it, in ms as JSON."""

import importlib
import json
import sys
import time

import verl  # noqa: F401


def import_again(module: str, package: str) -> float:
    """Returns the ms that an import takes if nothing of its package is loaded."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    start = time.process_time()
    importlib.import_module(module)
    return 1000 * (time.process_time() - start)


pairs = [
    (import_again("rolloutdeck.trainers.verl", "rolloutdeck"), import_again("asyncio", "asyncio")) for _ in range(40)
]
print(json.dumps(pairs))
