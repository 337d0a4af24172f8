"""`rolloutdeck check`: finds trainer settings that would lose samples, and prints the lines to paste."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping, Sequence

from rolloutdeck.cli.common import format_count
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import Settings
from rolloutdeck.trainer_api import TRAINERS, SettingsIssue, Trainer, load_trainer
from rolloutdeck.trainer_config import parse_overrides, read_config_file


def main(args: argparse.Namespace) -> int:
    if args.trainer not in TRAINERS:
        raise UsageError(f"No check for the trainer {args.trainer!r}. Available: {', '.join(TRAINERS)}.")
    trainer = load_trainer(args.trainer)
    from_file, complete = read_config_file(args.config) if args.config else ({}, False)
    settings = {**from_file, **parse_overrides(args.overrides)}
    if args.config and not settings:
        raise UsageError(f"{args.config} contains no settings.")
    if from_file and not _has_settings_of(trainer, settings):
        expected = ", ".join(name.removesuffix(".") for name in trainer.setting_names[:4])
        raise UsageError(
            f"{args.config} is not the configuration of a run of {trainer.name}: it has none of {expected}, …"
        )
    if not settings:
        _print_instructions(trainer)
        return 0
    issues = trainer.check_settings(settings, complete=complete)
    _print_issues(issues)
    _print_environment(trainer)
    return 1 if any(issue.lost_data for issue in issues) else 0


def _has_settings_of(trainer: Trainer, settings: Mapping[str, object]) -> bool:
    prefixes = tuple(name for name in trainer.setting_names if name.endswith("."))
    return any(name in trainer.setting_names or name.startswith(prefixes) for name in settings)


def _print_issues(issues: Sequence[SettingsIssue]) -> None:
    losing = [issue for issue in issues if issue.lost_data]
    undetermined = [issue for issue in issues if issue.possible_loss]
    rest = [issue for issue in issues if not issue.lost_data and not issue.possible_loss]
    for issue in [*losing, *undetermined, *rest]:
        print(f"{'LOST' if issue.lost_data else 'NOTE'}  {issue.title}.")
        if explanation := issue.lost_data or issue.possible_loss:
            print(f"      {explanation}")
        for line in issue.fix:
            print(f"          {line}")
    summary = f"{format_count(len(losing), 'setting')} would lose data." if losing else "No setting would lose data."
    unknown = f" Cannot determine {format_count(len(undetermined), 'setting')}." if undetermined else ""
    print(f"{summary}{unknown}")


def _print_instructions(trainer: Trainer) -> None:
    print(f"{trainer.instructions}\n")
    _print_lines(trainer.recommended_lines())
    if lines := trainer.store_lines():
        print("\nTo pin steps and replay them later, also let the trainer store those steps:\n")
        _print_lines(lines)
    if trainer.watch_tree:
        print("\nThen watch all runs:\n")
        _print_lines([f"rolloutdeck watch --tree '{trainer.watch_tree}'"])
    _print_environment(trainer)


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"    {line}")


def _print_environment(trainer: Trainer) -> None:
    """Prints the variables that code in the trainer's processes needs: a plug-in, a callback, `rolloutdeck.init`."""
    if trainer.replay_lines is None:
        return
    settings = Settings.from_environment()
    values = {
        "ROLLOUTDECK_URL": settings.url or "http://HOST:8460",
        "ROLLOUTDECK_TOKEN_FILE": os.environ.get("ROLLOUTDECK_TOKEN_FILE") or "/path/to/token",
        "ROLLOUTDECK_PROJECT": settings.project or "PROJECT",
        "ROLLOUTDECK_RUN": settings.run or "RUN",
    }
    print(
        "\nWatched files need nothing more. Code inside the trainer's processes (our plug-in or callback, or your calls"
    )
    print("of rolloutdeck.init()) must know the server:\n")
    exports = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    _print_lines(trainer.environment_lines(values) if trainer.environment_lines else exports)
    print("\nOn the machine of `rolloutdeck up`, URL and token are not needed. On another machine a token is needed.")
    print("Create it on the server's machine; the scope `read` is for replay:\n")
    _print_lines([f"rolloutdeck token create NAME --project {values['ROLLOUTDECK_PROJECT']} --scope ingest,read"])
