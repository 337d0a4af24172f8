"""The arguments of most commands: the server and the run."""

from __future__ import annotations

import argparse


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server").add_argument
    add("--url", default="", help="URL of the server; default: ROLLOUTDECK_URL, else the local server")
    token_help = "default: ROLLOUTDECK_TOKEN, ROLLOUTDECK_TOKEN_FILE, else the local server's token"
    add("--token", default="", help=token_help)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT")
    parser.add_argument("--run", default="", help="run name; default: ROLLOUTDECK_RUN")
