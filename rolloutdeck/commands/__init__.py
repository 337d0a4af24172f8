"""What the command line does: a module per command, each with `main(args) -> exit status`."""
