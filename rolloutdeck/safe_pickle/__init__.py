"""Reading what a trainer would unpickle, without unpickling it."""

from rolloutdeck.safe_pickle.errors import Refused
from rolloutdeck.safe_pickle.verdict import Verdict, check

__all__ = ["Refused", "Verdict", "check"]
