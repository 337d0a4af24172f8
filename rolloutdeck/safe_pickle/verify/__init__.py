"""The verifier: proves that everything a trainer would unpickle is on the allowlist, with the expected arguments.

Depends on: `stream`.
Invariant: it imports, calls and builds nothing of the pickle.
"""

from rolloutdeck.safe_pickle.verify.abstract_values import (
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    RuleViolationError,
)
from rolloutdeck.safe_pickle.verify.interpreter import PickleVerifier

__all__ = ["AbstractContainer", "AbstractObject", "AbstractValue", "PickleVerifier", "RuleViolationError"]
