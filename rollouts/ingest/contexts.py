"""The context of an attempt: what its processes ran. Safe to call twice.

The facts, each left out if unknown: `command` (arguments), `folder` (its name), `git` {branch, commit, changed},
`python`, `platform`, `packages` {name: version}, and `hosts` {host: {gpus, driver, cpus}}.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from django.db import transaction

from rollouts.errors import InvalidInputError
from rollouts.ingest.attempts import get_or_create_attempt
from rollouts.lib import redact_command, redact_text
from rollouts.live import notify_run_changed
from rollouts.models import AttemptContext, Run

MAX_TEXT_CHARS = 200
MAX_ARGUMENTS = 2000
MAX_ARGUMENT_CHARS = 64 << 10
MAX_PACKAGES = 1000
MAX_HOSTS = 256
MAX_GPU_MODELS = 16
MAX_PATCH_CHARS = 256 << 10
MAX_COUNT = 10**6
TEXTS = ("folder", "python", "platform")


def record_context(run: Run, *, attempt: str, facts: Mapping[str, Any]) -> AttemptContext:
    """Stores what a process reports. The facts of its host are added; the others are those of the first process that
    reports, or of the leading one. Secrets are masked. Raises InvalidInputError."""
    own = get_or_create_attempt(run, attempt)
    reported, patch, host = parse_facts(facts), parse_patch(facts), parse_host(facts)
    with transaction.atomic():
        row = AttemptContext.objects.select_for_update(no_key=True).filter(attempt=own).first()
        row = row or AttemptContext(attempt=own)
        hosts = {**row.facts.get("hosts", {}), **host}
        is_lead = facts.get("lead") is True
        row.facts = {**row.facts, **reported} if is_lead else {**reported, **row.facts}
        row.facts["hosts"] = dict(list(hosts.items())[:MAX_HOSTS])
        row.patch = patch if is_lead or not row.patch else row.patch
        row.save()
        notify_run_changed(run)
    return row


def parse_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {name: text for name in TEXTS if (text := clean(facts.get(name)))}
    command = facts.get("command")
    if isinstance(command, list):
        arguments = [str(each)[:MAX_ARGUMENT_CHARS] for each in command[:MAX_ARGUMENTS]]
        result["command"] = redact_command(arguments)
    elif command is not None:
        raise InvalidInputError("`command` must be a list of strings.", "command")
    packages = parse_object(facts, "packages")
    cleaned = ((clean(name), clean(version)) for name, version in packages.items())
    if known := dict(islice(filter(all, cleaned), MAX_PACKAGES)):  # the rest is not read: a request may have many
        result["packages"] = known
    git = parse_object(facts, "git")
    code = {name: text for name in ("branch", "commit") if (text := clean(git.get(name)))}
    if code:
        changed = parse_count(git.get("changed"))
        result["git"] = {**code, **({} if changed is None else {"changed": changed})}
    return result


def parse_patch(facts: Mapping[str, Any]) -> str:
    patch = parse_object(facts, "git").get("patch")
    return redact_text(patch[:MAX_PATCH_CHARS]) if isinstance(patch, str) else ""


def parse_host(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns {host: its GPUs, driver and number of CPUs}."""
    host = clean(facts.get("host"))
    if not host:
        return {}
    gpus = {clean(name): parse_count(count) or 1 for name, count in parse_object(facts, "gpus").items()}
    values = {
        "gpus": dict(list(gpus.items())[:MAX_GPU_MODELS]),
        "driver": clean(facts.get("driver")),
        "cpus": parse_count(facts.get("cpus")),
    }
    return {host: {name: value for name, value in values.items() if value}}


def parse_object(facts: Mapping[str, Any], name: str) -> Mapping[Any, Any]:
    value = facts.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise InvalidInputError(f"`{name}` must be a JSON object.", name)
    return value or {}


def clean(value: object) -> str:
    """Redacts more than is kept: what is cut off may say that the text before it is secret."""
    return redact_text(value[:MAX_ARGUMENT_CHARS])[:MAX_TEXT_CHARS] if isinstance(value, str) else ""


def parse_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None
