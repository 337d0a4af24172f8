"""Hostile files: they run a command, exhaust memory or time, or are read differently by two programs; each has the
reason for which it is refused.

Every file is complete and harmless except for the part that its name describes. The command that they run is
`os.system`, which creates a file, so that a test can see it.
"""

from __future__ import annotations

from tests.rolloutdeck.safe_pickle.hostile.archives import ARCHIVES
from tests.rolloutdeck.safe_pickle.hostile.attributes import ATTRIBUTES, BENIGN
from tests.rolloutdeck.safe_pickle.hostile.buffers import BUFFERS
from tests.rolloutdeck.safe_pickle.hostile.calls import CALLS
from tests.rolloutdeck.safe_pickle.hostile.case import SYSTEM, Case
from tests.rolloutdeck.safe_pickle.hostile.limits import LIMITS
from tests.rolloutdeck.safe_pickle.hostile.shapes import SHAPES
from tests.rolloutdeck.safe_pickle.hostile.tensors import TENSORS

__all__ = ["BENIGN", "CORPUS", "LIMITS", "SYSTEM", "Case"]

CORPUS: dict[str, Case] = {**CALLS, **SHAPES, **LIMITS, **ARCHIVES, **TENSORS, **ATTRIBUTES, **BUFFERS}
