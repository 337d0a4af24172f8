"""What the text of a response says: its answer, its properties, its unit tests, and what it shares with other texts.

Depends on: the records of samples. It knows no table and no file.
Invariant: a property that is shown is correct; some cases are missed.
"""

from rollouts.samples.responses.answer_check import (
    MAX_STORED_CHARS,
    AnswerChecker,
    differs,
    extract_text_answer,
    read_ground_truth,
)
from rollouts.samples.responses.final_answer import extract_final_answer
from rollouts.samples.responses.passages import find_passage
from rollouts.samples.responses.prefill import continues_answer
from rollouts.samples.responses.templates import NAME_MASK, NUMBER_MASK, Template, find_templates, mask_edges
from rollouts.samples.responses.text_properties import (
    PROPERTIES_VERSION,
    PROPERTY_CATALOG,
    ROWS_VERSION,
    TEXT_PROPERTY_BITS,
    PropertyBits,
    ResponseScan,
    compute_text_properties,
    has_tool_call,
    scan_responses,
)
from rollouts.samples.responses.unit_tests import UnitTestCase, UnitTestResults, parse_unit_tests

__all__ = [
    "AnswerChecker", "MAX_STORED_CHARS", "NAME_MASK", "NUMBER_MASK", "PROPERTIES_VERSION", "PROPERTY_CATALOG",
    "PropertyBits", "ROWS_VERSION", "ResponseScan", "TEXT_PROPERTY_BITS", "Template", "UnitTestCase", "UnitTestResults",
    "compute_text_properties", "continues_answer", "differs", "extract_final_answer", "extract_text_answer",
    "find_passage", "find_templates", "has_tool_call", "mask_edges", "parse_unit_tests", "read_ground_truth",
    "scan_responses",
]  # fmt: skip
