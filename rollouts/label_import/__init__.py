"""Import of labels: rows of a file, whose samples are found by id, by place or by text, are merged into the labels.

Depends on: labels, samples, and the reader of conversations in formats.
Invariant: a row never labels a sample that disagrees with what the row says about it; what is not imported is reported,
and importing again changes nothing.
"""

from rollouts.label_import.importer import MAX_IMPORT_ROWS, ImportOptions, ImportProblem, ImportResult, import_rows
from rollouts.label_import.rows import FIELDS

__all__ = ["FIELDS", "MAX_IMPORT_ROWS", "ImportOptions", "ImportProblem", "ImportResult", "import_rows"]
