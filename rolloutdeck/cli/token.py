"""`rolloutdeck token create`: a revocable token; only the secret goes to standard output."""

from __future__ import annotations

import argparse

from rolloutdeck.cli.common import build_server_client, format_sentence, load_settings, print_message, require_project
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerUnreachableError
from rolloutdeck.protocol import TOKEN_SCOPES


def main(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    project = require_project(args, settings)
    scopes = [word for part in args.scope or ["ingest"] for scope in part.split(",") if (word := scope.strip())]
    if strange := [scope for scope in scopes if scope not in TOKEN_SCOPES]:
        raise UsageError(f"There is no scope {strange[0]!r}; there are {', '.join(TOKEN_SCOPES)}.")
    if not scopes:
        raise UsageError(f"--scope is empty; say some of {','.join(TOKEN_SCOPES)}.")
    wanted = {"name": args.name, "project": project, "scopes": scopes}
    try:
        answer = build_server_client(settings).send_json("POST", "tokens/", wanted)
    except ServerUnreachableError as error:
        raise UsageError(f"The server does not answer: {error}.") from error
    made = answer.json()
    secret = made.get("token") if answer.is_success and isinstance(made, dict) else None
    if not isinstance(secret, str):
        raise UsageError(format_sentence(answer.error_message))
    print_message(
        f"Token {args.name} for project {project} may {', '.join(scopes)}. It is shown only now; it does not expire."
    )
    print_message("Give it to a trainer as ROLLOUTDECK_TOKEN, or in a file that ROLLOUTDECK_TOKEN_FILE names.")
    print(secret)
    return 0
