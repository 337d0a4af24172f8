"""The command line: one module per command, each with `main(args) -> exit status`.

Depends on: all other folders of `rolloutdeck`.
Invariant: results are printed to standard output, messages to standard error.
"""

from rolloutdeck.cli.entry import main

__all__ = ["main"]
