"""Creates and deletes re-scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.utils.translation import gettext as _

from rollouts.errors import ConflictError, InvalidInputError
from rollouts.lib import parse_text
from rollouts.live import notify_run_changed
from rollouts.models import Project, Rescore, Run
from rollouts.projects import record_audit_entry
from rollouts.query import KEY_PATTERN, RESERVED_WORDS, QueryScope, list_trainer_columns

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_NAME_CHARS: Final = 50
MAX_RESCORES: Final = 50  # of a run
KEY_PREFIXES: Final = ("label.", "extra.", "config.", "metric.")
MAX_THRESHOLD: Final = 1e100


def create_rescore(
    run: Run,
    by: User,
    *,
    name: Any,
    kind: str,
    source: Any,
    digest: Any,
    threshold: Any = None,
    replace: bool = False,
) -> tuple[Rescore, bool]:
    """Returns the re-score of this name, and whether it is new. `digest` identifies the version of the function or the
    judge: with another one the name is taken, unless `replace` deletes the results of the old one. The caller has
    checked that `by` may annotate. Raises InvalidInputError and ConflictError."""
    name = parse_name(name)
    source = parse_text(source, "source", max_chars=200).strip()
    digest = parse_text(digest, "digest", max_chars=64).strip()
    if not source or not digest:
        raise InvalidInputError(_("A re-score needs `source` and `digest`."), "source")
    if threshold is not None and not (isinstance(threshold, int | float) and abs(threshold) < MAX_THRESHOLD):
        raise InvalidInputError(_("The threshold must be a number."), "threshold")
    check_columns(run, name)
    with transaction.atomic():
        Project.objects.lock(run.project)
        known: Rescore | None = run.rescores.filter(name=name).first()
        if known and (known.digest, known.kind) == (digest, kind):
            return update_threshold(known, by, threshold), False
        if known:
            check_replace(known, by, replace)
            threshold = known.threshold if threshold is None else threshold
            delete_rescore(known, by)
        elif run.rescores.count() >= MAX_RESCORES:
            message = _("This run has {count} re-scores, which is the limit. Delete one first.")
            raise ConflictError(message.format(count=MAX_RESCORES), "name")
        rescore = Rescore.objects.create(
            run=run,
            name=name,
            kind=kind,
            source=source,
            digest=digest,
            threshold=threshold,
            created_by=by,
            author=by.get_username(),
        )
        record_audit_entry(by, "rescore.create", name, project=run.project, run=run.uid, text=source)
        notify_run_changed(run)
    return rescore, True


def update_threshold(rescore: Rescore, by: User, threshold: float | None) -> Rescore:
    """Raises ConflictError."""
    if threshold is not None and threshold != rescore.threshold:
        check_may_change(rescore, by)
        rescore.threshold = threshold
        rescore.save(update_fields=["threshold", "updated_at"])
        run = rescore.run
        record_audit_entry(by, "rescore.update", rescore.name, project=run.project, run=run.uid, threshold=threshold)
        notify_run_changed(rescore.run)
    return rescore


def check_replace(known: Rescore, by: User, replace: bool) -> None:
    """Raises ConflictError."""
    if not replace:
        message = _(
            "{name} has {count} results of another version: {source}. Choose another name, or replace its results."
        )
        text = message.format(name=known.name, count=f"{known.results:,}", source=known.source)
        raise ConflictError(text, "name")
    check_may_change(known, by)


def check_may_change(known: Rescore, by: User) -> None:
    """Raises ConflictError."""
    if not known.may_be_changed_by(by, known.run.project.role_of(by)):
        message = _("{name} is a re-score of {author}. Choose another name, or ask a maintainer.")
        raise ConflictError(message.format(name=known.name, author=known.author), "name")


def parse_name(value: Any) -> str:
    """Raises InvalidInputError."""
    name = parse_text(value, "name", max_chars=MAX_NAME_CHARS).strip()
    is_key = KEY_PATTERN.fullmatch(name) and "/" not in name and name.isascii()
    if not is_key or name.lower() in RESERVED_WORDS or name.startswith(KEY_PREFIXES):
        message = _(
            "A re-score is named with letters, digits, `.`, `-` and `_`, such as score.v2, and not like a field of a "
            "query: {name}."
        )
        raise InvalidInputError(message.format(name=repr(name)), "name")
    return name


def check_columns(run: Run, name: str) -> None:
    """Raises ConflictError if the trainer logged this name."""
    scope = QueryScope(run, run.steps.current(), None)
    if name in list_trainer_columns(scope):
        message = _("The trainer logged {name}. Choose another name, such as score.v2.")
        raise ConflictError(message.format(name=name), "name")


@transaction.atomic
def delete_rescore(rescore: Rescore, by: User) -> None:
    """Deletes the results too. What is left of it in rows of samples has a key that is never used again. Waits
    for an upload of results, so that none is left over."""
    row = Rescore.objects.select_for_update().filter(pk=rescore.pk).first()
    if row is None:  # deleted meanwhile
        return
    record_audit_entry(
        by, "rescore.delete", rescore.name, project=rescore.run.project, run=rescore.run.uid, text=rescore.source,
        results=row.results,
    )  # fmt: skip
    row.delete()
    notify_run_changed(rescore.run)
