"""The verifier: proves that what a trainer would unpickle is on the allowlist, with its argument shapes."""

from rolloutdeck.safe_pickle.verify.abstract_values import (
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    RuleViolationError,
)
from rolloutdeck.safe_pickle.verify.interpreter import PickleVerifier

__all__ = ["AbstractContainer", "AbstractObject", "AbstractValue", "PickleVerifier", "RuleViolationError"]
