"""The rows of the report, and which of them miss their budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

NUMBER = r"[\d][\d,]*(?:\.\d+)?"
LIMIT = re.compile(rf"(<=|>=) ({NUMBER})(?: ([\w/]+))?")
LIMIT_OF_TIME = re.compile(rf"<= ({NUMBER}) ms")


@dataclass(frozen=True)
class Row:
    """`budget` has limits such as `<= 1.3 x` and `>= 10,000`. A limit is about the first number of `measured` with its
    unit, or the first number at all if none has it. Limits of time are `slowness` times as high."""

    what: str
    measured: str
    budget: str = ""
    slowness: float = 1.0

    def list_missed_limits(self) -> list[str]:
        """Raises ValueError if nothing was measured for a limit."""
        missed = []
        for sign, limit, unit in LIMIT.findall(self.allowed):
            value = self.find_number(unit)
            if value > parse_number(limit) if sign == "<=" else value < parse_number(limit):
                missed.append(f"{sign} {limit} {unit}".rstrip())
        return missed

    @property
    def allowed(self) -> str:
        """The budget on this machine."""
        return LIMIT_OF_TIME.sub(lambda found: format_limit(parse_number(found[1]) * self.slowness), self.budget)

    @property
    def shown_budget(self) -> str:
        return self.budget if self.allowed == self.budget else f"{self.budget}, here {self.allowed.removeprefix('<= ')}"

    def find_number(self, unit: str) -> float:
        with_unit = re.search(rf"({NUMBER}) {re.escape(unit)}(?!\w)", self.measured) if unit else None
        found = with_unit or re.search(f"({NUMBER})", self.measured)
        if found is None:
            raise ValueError(f"{self.what}: {self.measured!r} has no number.")
        return parse_number(found[1])


@dataclass
class Report:
    """Prints rows as they are measured. `slowness` is how many times as long as on the machine of the budgets the plain
    loop takes here."""

    rows: list[Row] = field(default_factory=list)
    slowness: float = 1.0

    def show(self, what: str, measured: str, budget: str = "") -> None:
        row = Row(what, measured, budget, self.slowness)
        self.rows.append(row)
        print(f"{what:58} {measured:>30}   {row.shown_budget}", flush=True)

    def list_missed(self) -> list[str]:
        """Returns a sentence for each budget that is missed."""
        return [
            f"{row.what.strip()}: {row.measured}, budget {', '.join(missed)}"
            for row in self.rows
            if (missed := row.list_missed_limits())
        ]

    def write_page(self, path: Path, machine: str) -> None:
        """Writes the rows as a page in Markdown, with a line about the machine and the missed budgets."""
        missed = [f"- {sentence}" for sentence in self.list_missed()] or ["None."]
        parts = [PAGE_HEAD, machine, *build_table(self.rows), "\n## Missed budgets\n", *missed]
        path.write_text("\n".join(parts) + "\n")


PAGE_HEAD = """# Performance

`make bench BENCH="--check --page docs/performance.md"` measures all budgets and writes this page. Ratios compare with a
baseline of the same run. "Here" is the budget on this machine: limits in milliseconds were set where the plain loop
takes 30 ms. Why a budget is missed, and what was tried: [decisions](decisions/README.md).
"""


def build_table(rows: Sequence[Row]) -> list[str]:
    lines = ["| what | measured | budget |", "|---|---|---|"]
    for row in rows:
        indent = "&nbsp;&nbsp;" if row.what.startswith(" ") else ""
        lines.append(f"| {indent}{row.what.strip()} | {row.measured} | {row.shown_budget} |".replace("|  |", "| |"))
    return lines


def format_limit(ms: float) -> str:
    return f"<= {ms:.0f} ms" if ms >= 10 else f"<= {ms:.3g} ms"


def parse_number(text: str) -> float:
    return float(text.replace(",", ""))
