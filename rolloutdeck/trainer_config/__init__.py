"""Reads the settings of a trainer from its YAML, Python file or flags.

Depends on: the standard library; PyYAML if it is installed.
Invariant: a trainer's file is parsed, never executed.
"""

from rolloutdeck.trainer_config.command_line import parse_overrides, parse_scalar
from rolloutdeck.trainer_config.load import flatten_settings, read_config_file, resolve_references
from rolloutdeck.trainer_config.unresolved import Expression, is_unresolved, list_unread_arguments, may_be_empty

__all__ = [
    "Expression",
    "flatten_settings",
    "is_unresolved",
    "list_unread_arguments",
    "may_be_empty",
    "parse_overrides",
    "parse_scalar",
    "read_config_file",
    "resolve_references",
]
