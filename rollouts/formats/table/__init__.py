"""Tables with free column names: CSV, JSON, Parquet and Arrow, and which column is which part of a sample.

Depends on: samples, the readers of `rollouts.formats`, `native` and `trl_completions` for the values of columns.
Invariant: the columns are recognised by the first rows, and the same for all rows of a file.
"""

from rolloutdeck.protocol import parse_json_text
from rollouts.formats.table.format import FORMATS, TOKEN_ONLY_TABLE_FORMATS, find_table_format

__all__ = ["FORMATS", "TOKEN_ONLY_TABLE_FORMATS", "find_table_format", "parse_json_text"]
