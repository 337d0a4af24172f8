"""What the command line does: a module per command, each with `main(args) -> exit status`."""

from rolloutdeck.cli.entry import main

__all__ = ["main"]
