"""How many milliseconds the plug-in adds to `import verl`: ten fresh imports of it, as JSON on standard output."""

import importlib
import json
import sys
import time

import verl  # noqa: F401

found = []
for _ in range(10):
    for name in [name for name in sys.modules if name.startswith("rolloutdeck")]:
        del sys.modules[name]
    start = time.perf_counter()
    importlib.import_module("rolloutdeck.trainers.verl")
    found.append(1000 * (time.perf_counter() - start))
print(json.dumps(found))
