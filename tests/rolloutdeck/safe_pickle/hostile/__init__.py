"""Files that want to run something, exhaust something, or show two readers two things; each with its reason.

Every one is whole and harmless but for the one thing that its name says. What they would run is `os.system` with a
command that makes a file, so that a test can see it.
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
