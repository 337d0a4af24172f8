"""Which stored files the rows refer to, whether they are whole, and the repair of those that are not.

Depends on: indexing, which rebuilds body files, and storage.
Invariant: a check only reads. A repair removes no file that a row refers to, unless its bytes are damaged.
"""

from rollouts.integrity.check import CheckOptions, CheckResult, Problem, check_integrity
from rollouts.integrity.references import FileReference, iterate_references, list_image_files
from rollouts.integrity.repair import Repair, repair_problems

__all__ = [
    "CheckOptions", "CheckResult", "FileReference", "Problem", "Repair", "check_integrity",
    "iterate_references", "list_image_files", "repair_problems",
]  # fmt: skip
