"""The run list as CSV: the shown columns of all matching runs, with numbers in full."""

import csv
from collections.abc import Sequence
from datetime import datetime
from io import StringIO
from typing import Any

from django.http import HttpResponse

from dashboard.pages.runs.columns import RunColumn, RunRow

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a text that begins so
NOT_EXPORTED = ("curve",)


def render_csv(rows: Sequence[RunRow], columns: Sequence[RunColumn]) -> HttpResponse:
    shown = [column for column in columns if column.key not in NOT_EXPORTED]
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(
        ["id", "project", "run", *(format_cell(column.key.partition(":")[2] or column.key) for column in shown)]
    )
    for row in rows:
        names = [row.run.uid, row.run.project.slug, row.run.name]
        writer.writerow([*map(format_cell, names), *(format_cell(column.value(row)) for column in shown)])
    response = HttpResponse(text.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="runs.csv"'
    return response


def format_cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
