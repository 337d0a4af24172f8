"""The type of the fixtures that run a command."""

from collections.abc import Callable
from typing import TypeAlias

# Runs a command. Returns its status, standard output and standard error.
Command: TypeAlias = Callable[..., tuple[int, str, str]]
