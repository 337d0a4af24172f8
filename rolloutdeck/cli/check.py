"""`rolloutdeck check`: what of a trainer's settings would lose samples, and the lines to paste."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import Any

from rolloutdeck.cli.common import format_count
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import Settings
from rolloutdeck.trainer_api import TRAINERS, SettingsIssue, Trainer, load_trainer
from rolloutdeck.trainer_config import parse_overrides, read_config_file


def main(args: argparse.Namespace) -> int:
    if args.trainer not in TRAINERS:
        known = ", ".join(TRAINERS)
        raise UsageError(f"There is no check for {args.trainer!r} yet; there is one for {known}.")
    trainer = load_trainer(args.trainer)
    given, complete = _settings(args)
    if not given:
        _advise(trainer)
        return 0
    findings = trainer.check_settings(given, complete=complete)
    _print(findings)
    _environment(trainer)
    return 1 if any(finding.lost for finding in findings) else 0


def _settings(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The file's settings with the command line's overrides on top."""
    found, complete = read_config_file(args.config) if args.config else ({}, False)
    settings = {**found, **parse_overrides(args.overrides)}
    if args.config and not settings:
        raise UsageError(f"{args.config} holds no settings.")
    return settings, complete


def _print(findings: Sequence[SettingsIssue]) -> None:
    losing = [finding for finding in findings if finding.lost]
    for finding in [*losing, *(finding for finding in findings if not finding.lost)]:
        print(f"{'LOST' if finding.lost else 'NOTE'}  {finding.title}.")
        if finding.lost:
            print(f"      {finding.lost}")
        for line in finding.paste:
            print(f"          {line}")
    print(f"{format_count(len(losing), 'setting')} would lose data." if losing else "No setting would lose data.")


def _advise(trainer: Trainer) -> None:
    print(f"{trainer.instructions}\n")
    _lines(trainer.recommended_lines())
    if lines := trainer.keep_lines():
        print("\nTo pin steps and replay them later, let it keep those steps as well:\n")
        _lines(lines)
    if trainer.watch_tree:
        print("\nThen follow all runs there:\n")
        _lines([f"rolloutdeck watch --tree '{trainer.watch_tree}'"])
    _environment(trainer)


def _lines(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"    {line}")


def _environment(trainer: Trainer) -> None:
    """For what runs in the trainer's processes: a plug-in, a callback, code that calls `rolloutdeck.init`."""
    if trainer.replay_lines is None:
        return
    known = Settings.from_environment()
    values = {
        "ROLLOUTDECK_URL": known.url or "http://HOST:8460",
        "ROLLOUTDECK_TOKEN_FILE": os.environ.get("ROLLOUTDECK_TOKEN_FILE") or "/path/to/token",
        "ROLLOUTDECK_PROJECT": known.project or "PROJECT",
        "ROLLOUTDECK_RUN": known.run or "RUN",
    }
    print("\nFiles that are watched need no more. What runs in the trainer's processes, as our own functions and code")
    print("that calls rolloutdeck.init(), needs the server there:\n")
    exports = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    _lines(trainer.environment_lines(values) if trainer.environment_lines else exports)
    print("\nBeside `rolloutdeck up` neither address nor token is needed. On another machine a token is, which is made")
    print("beside the server; one that may replay, too, by:\n")
    _lines([f"rolloutdeck token create NAME --project {values['ROLLOUTDECK_PROJECT']} --scope ingest,read"])
