"""What the processes of the attempts ran, as rows with the value of the other run where it differs."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rolloutdeck.trainer_api import TRAINERS
from rollouts.models import AttemptContext, Run

# Packages that are shown first, in this order.
MAIN_PACKAGES = (
    "rolloutdeck", *TRAINERS, "torch", "vllm", "sglang", "transformers", "ray", "deepspeed", "flash-attn", "accelerate",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class VersionRow:
    """`other` is empty if it is the same or unknown."""

    name: str
    value: str
    other: str = ""


def load_contexts(run: Run) -> list[AttemptContext]:
    """The contexts of the attempts, the newest first, without patches."""
    rows = AttemptContext.objects.filter(attempt__run=run).select_related("attempt").defer("patch")
    return list(rows.order_by("-attempt__number"))


def build_version_rows(facts: Mapping[str, Any], other: Mapping[str, Any]) -> list[VersionRow]:
    """Code, Python, main packages and hosts."""
    rows = [(_("code"), describe_code), (_("folder"), get_text("folder")), (_("Python"), get_text("python"))]
    rows += [(name, get_package(name)) for name in MAIN_PACKAGES]
    rows += [(_("platform"), get_text("platform")), (_("hosts"), describe_hosts)]
    result = []
    for name, read in rows:
        own, others = read(facts), read(other)
        if own or others:
            result.append(VersionRow(name, own, others if others != own else ""))
    return result


def build_package_rows(facts: Mapping[str, Any], other: Mapping[str, Any]) -> list[VersionRow]:
    """All other packages, those that differ first."""
    own, others = facts.get("packages", {}), other.get("packages", {})
    names = sorted({*own, *others} - set(MAIN_PACKAGES)) if others else sorted(set(own) - set(MAIN_PACKAGES))
    rows = [
        VersionRow(
            name, own.get(name, ""), others.get(name, "–") if others and others.get(name) != own.get(name) else ""
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: not row.other)


def get_text(name: str) -> Any:
    return lambda facts: str(facts.get(name, ""))


def get_package(name: str) -> Any:
    return lambda facts: str(facts.get("packages", {}).get(name, ""))


def describe_code(facts: Mapping[str, Any]) -> str:
    git = facts.get("git", {})
    parts = [git.get("commit", "")[:12], git.get("branch", "")]
    changed = git.get("changed")
    if changed:
        parts.append(ngettext("{count} file changed", "{count} files changed", changed).format(count=changed))
    elif changed == 0:
        parts.append(_("no changes"))
    return " ".join(part for part in parts if part)


def describe_hosts(facts: Mapping[str, Any]) -> str:
    return "; ".join(describe_host(name, host) for name, host in facts.get("hosts", {}).items())


def describe_host(name: str, host: Mapping[str, Any]) -> str:
    gpus = [f"{count} × {model}" for model, count in host.get("gpus", {}).items()]
    driver = _("driver {version}").format(version=host["driver"]) if host.get("driver") else ""
    return ", ".join(part for part in (name, *gpus, driver) if part)


def format_command(arguments: Sequence[str]) -> str:
    """The command as one line that a shell accepts; `***` stands for a secret."""
    return " ".join(argument if argument == "***" else shlex.quote(argument) for argument in arguments)
