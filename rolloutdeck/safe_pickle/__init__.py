"""Reading what a trainer would unpickle, without unpickling it."""

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.verdict import SafetyReport, check_file_safety

__all__ = ["SafePickleError", "SafetyReport", "check_file_safety"]
