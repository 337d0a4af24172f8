"""Reading what a trainer would unpickle, without unpickling it."""

from rolloutdeck.safe.errors import Refused
from rolloutdeck.safe.verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
