"""Random faults while a run trains, is watched and is annotated. See `__main__` for the command.

`world` starts the server and the programs that use it, `faults` disturbs them, `proxy` is the network between them, and
`checks` compares the end with what was acknowledged.
"""
