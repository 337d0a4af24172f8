"""Stores the results that a command sends, and lists them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from rolloutdeck.protocol import (
    ACCURACY_PART,
    MAX_RESULT_NUMBER,
    MAX_RESULT_PART_NAME_CHARS,
    MAX_RESULT_PART_TEXT_CHARS,
    MAX_RESULT_PARTS,
    MAX_RESULT_RATIONALE_CHARS,
)
from rollouts import samples
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.lib import parse_text
from rollouts.live import notify_run_changed
from rollouts.models import Rescore, RescoreBlock, Sample, Step
from rollouts.samples import RescoreResult

MAX_RESULTS: Final = 2000  # in one request
MAX_ERROR_CHARS: Final = 500
MAX_NUMBER_PARTS: Final = 8  # of a re-score: columns
FIELDS: Final = ("sample", "value", "error", "parts", "rationale")


def parse_results(rows: Any) -> dict[str, RescoreResult]:
    """Returns the results by sample id. Raises InvalidInputError."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_RESULTS:
        message = _("`results` must be a list of 1 to {limit} objects.")
        raise InvalidInputError(message.format(limit=f"{MAX_RESULTS:,}"), "results")
    results: dict[str, RescoreResult] = {}
    for row in rows:
        if not isinstance(row, dict) or row.keys() - set(FIELDS):
            message = _("A result has the fields {fields}.")
            raise InvalidInputError(message.format(fields=", ".join(FIELDS)), "results")
        results[parse_text(row.get("sample"), "sample", max_chars=60)] = parse_result(row)
    return results


def parse_result(row: Mapping[str, Any]) -> RescoreResult:
    """A result has a number, or an error that says why it has none."""
    value, error = row.get("value"), clean_text(row.get("error"), MAX_ERROR_CHARS)
    if value is None and not error:
        raise InvalidInputError(_("A result needs `value`, or `error`: why there is none."), "value")
    if value is not None and not is_number(value):
        raise InvalidInputError(_("`value` must be a finite number."), "value")
    parts = row.get("parts") or {}
    if not isinstance(parts, dict):
        raise InvalidInputError(_("`parts` must be an object."), "parts")
    return RescoreResult(
        value=None if error else float(value or 0),
        error=error,
        parts=parse_parts(parts),
        rationale=clean_text(row.get("rationale"), MAX_RESULT_RATIONALE_CHARS),
    )


def parse_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps numbers and short texts, first of all `acc`. Functions return what they like, so anything else is left
    out."""
    kept: dict[str, Any] = {}
    for name, value in sorted(parts.items(), key=lambda pair: pair[0] != ACCURACY_PART)[:MAX_RESULT_PARTS]:
        name = clean_text(name, MAX_RESULT_PART_NAME_CHARS)
        if is_number(value):
            kept[name] = float(value)
        elif isinstance(value, str) and value:
            kept[name] = clean_text(value, MAX_RESULT_PART_TEXT_CHARS)
    return kept


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < MAX_RESULT_NUMBER


def clean_text(value: Any, max_chars: int) -> str:
    """Returns the start of the text, without what no database stores."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text[:max_chars].replace("\0", "").encode("utf-8", "replace").decode().strip()


def save_results(rescore: Rescore, results: Mapping[str, RescoreResult]) -> int:
    """Stores the results, step by step. Samples that the run no longer has are left out. Returns how many were stored.

    Raises NotFoundError if the re-score was deleted meanwhile.
    """
    by_step: dict[int, dict[str, RescoreResult]] = defaultdict(dict)
    rows = Sample.objects.filter(pk__in=list(results), step__run=rescore.run_id).values_list("pk", "step")
    for sample, step in rows:
        by_step[step][sample] = results[sample]
    return sum(save_step_results(rescore, step, by_step[step]) for step in sorted(by_step))


@transaction.atomic
def save_step_results(rescore: Rescore, step_id: int, results: Mapping[str, RescoreResult]) -> int:
    """Locks the step's row first, as all who write rows of samples. Samples that were removed until then are left out:
    a judge wrote about their text. Returns how many results were stored."""
    step = Step.objects.select_for_update(no_key=True, of=("self",)).select_related("run").filter(pk=step_id).first()
    row = Rescore.objects.select_for_update(no_key=True).filter(pk=rescore.pk).first()
    if row is None:
        raise NotFoundError(_("The re-score {name} was deleted.").format(name=rescore.name), "rescore")
    if step is None:
        return 0
    present = Sample.objects.filter(step=step, pk__in=list(results)).values_list("pk", flat=True)
    results = {sample: results[sample] for sample in present}
    if not results:
        return 0
    row.parts = add_parts(row.parts, results)
    count, errors = samples.store_results(step, row, results)
    Rescore.objects.filter(pk=row.pk).update(
        parts=row.parts, results=F("results") + count, errors=F("errors") + errors, updated_at=timezone.now()
    )
    Step.objects.filter(pk=step.pk).update(version=F("version") + 1, updated_at=timezone.now())
    notify_run_changed(step.run, split=step.split, step=step.step, sparse=True)
    return len(results)


def add_parts(known: list[str], results: Mapping[str, RescoreResult]) -> list[str]:
    """Adds the names of new numbers, which become columns. The first ones stay; if there is no place for `acc`, which
    says what is correct, it gets that of the last one."""
    found = dict.fromkeys(
        name for result in results.values() for name, value in result.parts.items() if isinstance(value, float)
    )
    columns = [name for name in found if name.isascii() and name.replace("_", "").replace("-", "").isalnum()]
    names = list(dict.fromkeys([*known, *columns]))
    kept = names[:MAX_NUMBER_PARTS]
    return [*kept[:-1], ACCURACY_PART] if ACCURACY_PART in names and ACCURACY_PART not in kept else kept


def list_results(
    rescore: Rescore, *, step: int, split: str = "", only_errors: bool = False
) -> list[tuple[str, RescoreResult]]:
    """Returns (sample id, result) of the steps with this number."""
    steps = Step.objects.filter(run=rescore.run_id, step=step, **({"split": split} if split else {}))
    rows = [row for each in steps.order_by("pk") for row in samples.load_results(each, rescore).items()]
    return [(sample, result) for sample, result in rows if not only_errors or result.value is None]


def load_sample_results(sample: Sample) -> list[tuple[Rescore, RescoreResult]]:
    """Returns what each re-score says about the sample, the newest first. The caller has checked that the reader may
    see re-scores."""
    blocks = RescoreBlock.objects.filter(step=sample.step_id).values("rescore")
    found: list[tuple[Rescore, RescoreResult]] = []
    for rescore in Rescore.objects.filter(pk__in=blocks).order_by("-pk"):
        results = samples.load_results(sample.step, rescore, {sample.pk})
        found += [(rescore, result) for result in results.values()]
    return found
