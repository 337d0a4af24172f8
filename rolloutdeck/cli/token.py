"""`rolloutdeck token create`: a revocable token; only the secret goes to standard output."""

from __future__ import annotations

import argparse

from rolloutdeck.cli.common import project_named, say, sentence, server_of, settings_of
from rolloutdeck.errors import BadInput
from rolloutdeck.lib.http import NotReachable
from rolloutdeck.protocol.wire import SCOPES


def main(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    project = project_named(args, settings)
    scopes = [word for part in args.scope or ["ingest"] for scope in part.split(",") if (word := scope.strip())]
    if strange := [scope for scope in scopes if scope not in SCOPES]:
        raise BadInput(f"There is no scope {strange[0]!r}; there are {', '.join(SCOPES)}.")
    if not scopes:
        raise BadInput(f"--scope is empty; say some of {','.join(SCOPES)}.")
    wanted = {"name": args.name, "project": project, "scopes": scopes}
    try:
        answer = server_of(settings).send_json("POST", "tokens/", wanted)
    except NotReachable as error:
        raise BadInput(f"The server does not answer: {error}.") from error
    made = answer.json()
    secret = made.get("token") if answer.ok and isinstance(made, dict) else None
    if not isinstance(secret, str):
        raise BadInput(sentence(answer.error))
    say(f"Token {args.name} for project {project} may {', '.join(scopes)}. It is shown only now; it does not expire.")
    say("Give it to a trainer as ROLLOUTDECK_TOKEN, or in a file that ROLLOUTDECK_TOKEN_FILE names.")
    print(secret)
    return 0
