"""Safe access to files that trainers unpickle: checks, reads and rewrites them without unpickling.

Depends on: the standard library; numpy only where an array is requested.
Invariant: nothing of a file is imported, called or executed, and a broken rule raises `SafePickleError`.
"""

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.safety_report import SafetyReport, check_file_safety

__all__ = ["SafePickleError", "SafetyReport", "check_file_safety"]
