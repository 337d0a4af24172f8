"""The data of the access matrix: two projects with the same objects, ids that do not exist, and the requests."""

from __future__ import annotations

import json
import re
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from dashboard.sign_in import sessions
from rollouts import queues
from rollouts.findings import findings
from rollouts.flags import bulk
from rollouts.models import Label, Run, Sample, SignInSession, Token
from rollouts.pins import artifact_check, pins
from rollouts.rescores import create_rescore, save_results
from rollouts.retention import update_policy
from rollouts.samples import RescoreResult
from rollouts.saved_views import save_view
from rollouts.sharing import create_shared_link
from tests.dashboard.support.api_client import create_filled_run
from tests.rollouts.support.artifacts import compute_key, describe_files, encode_meta, register_artifact, upload_files
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.images import IMAGES, data_url

SLUGS = ("ownproject", "foreignproject", "madeupproject")
# Distinctive, so that ids are recognised in a text.
FIRST_OWN_ID, FIRST_FOREIGN_ID, FIRST_MADE_UP_ID = 666_000, 777_000, 888_000

# The kind of an argument in a URL pattern, by the part before it and its name.
ARGUMENTS = {
    ("runs", "uid"): "run",
    ("steps", "step"): "step",
    ("nearest", "step"): "step",
    ("groups", "step"): "step",
    ("step", "group"): "group",
    ("prompts", "key"): "prompt",
    ("samples", "pk"): "sample",
    ("images", "digest"): "image",
    ("images", "sha256"): "image",
    ("findings", "pk"): "finding",
    ("exhibits", "pk"): "exhibit",
    ("exhibits", "exhibit_pk"): "exhibit",
    ("flags", "pk"): "flag",
    ("labels", "pk"): "flag",
    ("pins", "pk"): "pin",
    ("views", "pk"): "view",
    ("queues", "pk"): "queue",
    ("rescores", "pk"): "rescore",
    ("items", "item"): "item",
    ("settings", "slug"): "slug",
    ("projects", "slug"): "slug",
    ("links", "pk"): "shared",
    ("tokens", "pk"): "token",
    ("shared", "secret"): "secret",
    ("sessions", "handle"): "session",
    ("language", "language"): "language",
    ("dumps", "sha256"): "dump",
    ("artifacts", "key"): "artifact",
    ("files", "sha256"): "file",
}
# The query strings of GET requests.
QUERIES = {
    "api/v1/samples/": "run={run}",
    "api/v1/flags/": "run={run}",
    "api/v1/labels/": "run={run}",
    "api/v1/findings/": "project={slug}",
    "api/v1/pins/": "run={run}",
    "api/v1/exports/samples/": "run={run}",
    "api/v1/completions/": "run={run}&q=sc",
    "api/v1/search/": "project={slug}&q=score>0",
    "api/v1/compare/": "of={run}@1,{run}@2",
    "api/v1/runs/": "project={slug}",
    "api/v1/views/": "project={slug}",
    "api/v1/queues/": "project={slug}",
    "api/v1/rescores/": "run={run}",
    "api/v1/rescores/<int:pk>/results/": "step=3",
    "api/v1/runs/<str:uid>/query-curve/": "q=score>0.5",
    "api/v1/runs/<str:uid>/wanted/": "host=h",
    "api/v1/projects/<str:slug>/replay-plan/": "run={run}",
    "compare/": "of={run}@1,{run}@2",
    "share/": "finding={finding}",
    "search/": "project={slug}&q=score>0",
    "samples/": "ids={sample}",
    "samples/<str:pk>/file/": "field=response",
    "pins/": "project={slug}",
    "findings/": "project={slug}",
    "queues/new/": "project={slug}&run={run}",
    "findings/add/": "sample={sample}&show=sample",
    "findings/<int:pk>/export/": "as=md",
    "live/": "project={slug}",
    "review/": "run={run}&step=1",
    "disk/": "project={slug}",
    "audit/": "project={slug}",
    "go/": "q={run}",
    "views/": "page=runs&project={slug}",
}
# Pages that change something: the role that they need, and what their form sends.
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "flag": ("annotator", {"reason": "other"}),
    "withdraw": ("maintainer", {}),  # another's flag
    "flag-many": ("annotator", {"samples": "{sample}", "reason": "other"}),
    "flag-undo": ("annotator", {}),
    "verdict": ("annotator", {"reason": "other"}),
    "seen": ("viewer", {"samples": "{sample}"}),
    "finding-add": ("annotator", {"sample": "{sample}", "show": "sample", "title": "New"}),
    "finding-edit": ("annotator", {"title": "Other", "note": "", "version": "1"}),
    "finding-remove": ("annotator", {}),
    "exhibit": ("annotator", {"do": "out"}),
    "rescore-delete": ("maintainer", {}),  # another's
    "queue-new": ("maintainer", {"project": "{slug}", "name": "New", "runs": "{run}", "selection": "all"}),
    "queue-update": ("maintainer", {"do": "close"}),
    "queue-decide": ("maintainer", {"question": "review", "q.review": "ok"}),
    "queue-answer": ("annotator", {"cannot_judge": "1"}),
    "queue-skip": ("annotator", {}),
    "queue-skipped": ("annotator", {}),
    "queue-undo": ("annotator", {}),
    "pin-step": ("maintainer", {"split": "train", "step_kind": "global_step", "step": "1", "attempt": "a"}),
    "pin-range": ("maintainer", {"run": "{run}", "first": "1", "last": "3"}),
    "plan-save": ("maintainer", {"project": "{slug}", "do": "save", "base": "0", "pin": "{pin}", "target": "1"}),
    "pin-note": ("maintainer", {"note": "other"}),
    "unpin": ("maintainer", {}),
    "tidy": ("maintainer", {"do": "tag", "tag": "new", "run": "{run}"}),
    "tidy-delete": ("owner", {"run": "{other}"}),
    "members": ("owner", {"user": "stan", "role": "viewer"}),
    "member-link": ("owner", {"user": "nora"}),
    "members-of-projects": ("owner", {"user": "stan", "role": "viewer", "project": "{slug}"}),
    "reasons": ("maintainer", {"reasons": "only this"}),
    "correct": ("maintainer", {"correct": "score>0.5"}),
    "loosen": ("maintainer", {"fact": "rows", "note": "it is fine"}),
    "tokens": ("maintainer", {"name": "x", "scopes": "read"}),
    "revoke": ("maintainer", {}),
    "revoke-link": ("owner", {}),
    "share": ("owner", {"finding": "{finding}"}),
    "save-view": ("annotator", {"page": "runs", "name": "New", "params": "q=a", "project": "{slug}", "shared": "1"}),
    "change-view": ("annotator", {"do": "rename", "name": "Other"}),
    "retention": ("owner", {"train": "every", "every": "3"}),
    "retention-run": ("maintainer", {}),
    "rubric": ("maintainer", {"row": "0", "key:0": "correct", "kind:0": "yes-no", "base": "0", "do": "save"}),
    "guidance": (
        "maintainer",
        {"row": "0", "key:0": "bad", "query:0": "is:flagged", "action:0": "mask", "base": "0", "do": "save"},
    ),
    "sample-labels": ("annotator", {"value:review": "cannot-judge"}),
    "quota": ("admin", {"quota_gb": "5"}),
}
# Pages that reserve what they show, and the role that they need.
RESCORE = {"run": "{run}", "name": "score.v3", "source": "my.py:f", "digest": "1"}
RESERVING = {"queue-review": "annotator"}
ARTIFACT: dict[str, Any] = {"step": 9, "role": "rollout", "files": describe_files({"a.json": b"1"})}
SAVED_VIEW = {"page": "runs", "name": "New", "params": "q=a", "project": "{slug}", "shared": True}
POINTS = {"attempt": "a", "points": [{"step": 1, "values": {"x": 1}}]}
# (method, pattern below api/v1/) -> the role that the request needs, and the body. `{#pin}` is sent as a number.
CALLS: dict[tuple[str, str], tuple[str, Any]] = {
    ("POST", "runs/"): ("maintainer", {"project": "{slug}", "name": "new"}),
    ("PATCH", "runs/<str:uid>/"): ("maintainer", {"name": "renamed"}),
    ("DELETE", "runs/<str:uid>/"): ("owner", None),
    ("POST", "runs/<str:uid>/heartbeat/"): ("maintainer", {"attempt": "a", "phase": "training"}),
    ("POST", "runs/<str:uid>/context/"): ("maintainer", {"attempt": "a", "host": "node-1"}),
    ("POST", "runs/<str:uid>/finish/"): ("maintainer", {"attempt": "a"}),
    ("POST", "runs/<str:uid>/metrics/"): ("maintainer", POINTS),
    ("POST", "runs/<str:uid>/index/"): ("maintainer", {}),
    ("GET", "runs/<str:uid>/query-curve/"): ("viewer", None),  # it stores what it computed
    ("GET", "runs/<str:uid>/wanted/"): ("maintainer", None),  # it records who asks
    ("PUT", "runs/<str:uid>/artifacts/"): ("maintainer", ARTIFACT),
    ("POST", "runs/<str:uid>/replay-plan/"): ("maintainer", {}),
    ("POST", "runs/<str:uid>/prompts/"): ("maintainer", {"steps": {"1": ["1+1="]}}),
    ("POST", "runs/<str:uid>/replays/"): ("maintainer", {"attempt": "a", "step": 1, "outcome": "miss"}),
    ("POST", "findings/"): ("annotator", {"project": "{slug}", "title": "New"}),
    ("PATCH", "findings/<int:pk>/"): ("annotator", {"title": "Other"}),
    ("DELETE", "findings/<int:pk>/"): ("annotator", None),
    ("POST", "findings/<int:pk>/exhibits/"): ("annotator", {"run": "{run}", "q": "score<1"}),
    ("PATCH", "findings/<int:pk>/exhibits/<int:exhibit_pk>/"): ("annotator", {"words": "so"}),
    ("DELETE", "findings/<int:pk>/exhibits/<int:exhibit_pk>/"): ("annotator", None),
    ("POST", "flags/"): ("annotator", {"sample": "{sample}", "reason": "other"}),
    ("PATCH", "flags/<int:pk>/"): ("annotator", {"text": "look"}),
    ("POST", "labels/"): ("annotator", {"sample": "{sample}", "name": "review", "value": "cannot-judge"}),
    ("POST", "labels/import/"): (
        "annotator",
        {"project": "{slug}", "rows": [{"sample": "{sample}", "name": "review", "value": "cannot-judge"}]},
    ),
    ("PATCH", "labels/<int:pk>/"): ("maintainer", {"withdrawn": True}),
    ("POST", "pins/range/"): ("maintainer", {"run": "{run}", "first": 1, "last": 3, "plan": "other"}),
    ("POST", "pins/"): ("maintainer", {"run": "{run}", "step": 1}),
    ("PATCH", "pins/<int:pk>/"): ("maintainer", {"note": "other"}),
    ("DELETE", "pins/<int:pk>/"): ("maintainer", None),
    ("POST", "projects/"): ("", {"slug": "fresh"}),
    ("PATCH", "projects/<str:slug>/"): ("maintainer", {"correct": "score>0.5"}),
    ("POST", "projects/<str:slug>/members/"): ("owner", {"user": "stan", "role": "viewer"}),
    ("PUT", "projects/<str:slug>/replay-plan/"): ("maintainer", {"entries": [{"pin": "{#pin}", "target_step": 1}]}),
    ("PUT", "projects/<str:slug>/rubric/"): (
        "maintainer",
        {"questions": [{"key": "correct", "kind": "yes-no"}], "base_version": 0},
    ),
    ("PUT", "projects/<str:slug>/guidance/"): (
        "maintainer",
        {"rules": [{"key": "bad", "query": "is:flagged", "action": "mask"}], "base_version": 0},
    ),
    ("PATCH", "projects/<str:slug>/retention/"): ("owner", {"train": "every", "every": 3}),
    ("POST", "projects/<str:slug>/retention/"): ("maintainer", {}),
    ("POST", "tokens/"): ("owner", {"name": "x", "project": "{slug}", "scopes": ["read"]}),
    ("DELETE", "tokens/<int:pk>/"): ("owner", None),
    ("PATCH", "projects/<str:slug>/charts/"): ("maintainer", {"version": 0, "pinned": ["score"]}),
    ("POST", "views/"): (
        "annotator",
        {"page": "runs", "name": "New", "params": "q=a", "project": "{slug}", "shared": True},
    ),
    ("POST", "rescores/"): ("annotator", RESCORE),
    ("DELETE", "rescores/<int:pk>/"): ("maintainer", None),
    ("POST", "rescores/<int:pk>/results/"): ("maintainer", {"results": [{"sample": "{sample}", "value": 0.5}]}),
    ("POST", "queues/"): ("maintainer", {"project": "{slug}", "name": "New", "runs": ["{run}"]}),
    ("PATCH", "queues/<int:pk>/"): ("maintainer", {"due_at": "2030-01-01T00:00"}),
    ("POST", "queues/<int:pk>/next/"): ("annotator", {}),
    ("POST", "queues/<int:pk>/undo/"): ("annotator", {}),
    ("PUT", "queues/<int:pk>/items/<int:item>/answers/"): ("annotator", {"answers": {"review": {"value": "ok"}}}),
    ("POST", "queues/<int:pk>/items/<int:item>/skip/"): ("annotator", {}),
    ("POST", "queues/<int:pk>/items/<int:item>/decide/"): ("maintainer", {"question": "review", "value": "ok"}),
    ("PATCH", "views/<int:pk>/"): ("annotator", {"name": "Other"}),
    ("DELETE", "views/<int:pk>/"): ("annotator", None),
}
# Requests whose first argument is another object: a run without pins.
ADDRESSES = {("DELETE", "api/v1/runs/<str:uid>/"): "/api/v1/runs/{other}/"}


def build_world() -> dict[str, dict[str, str]]:
    """Ids by the kind of object: of the own project, of a foreign one, and ids that do not exist."""
    User.objects.create_user("stan")
    User.objects.create_user("nora")  # never signed in
    own, foreign = (
        build_objects(slug, owner, first_id)
        for slug, owner, first_id in ((SLUGS[0], "olga", FIRST_OWN_ID), (SLUGS[1], "fred", FIRST_FOREIGN_ID))
    )
    return {"own": own, "foreign": foreign, "made-up": build_made_up_ids(foreign)}


def build_objects(slug: str, name: str, first_id: int) -> dict[str, str]:
    """A run with a flagged sample that has an image, a finding that shows it, a pin and an artifact with its file; an
    `other` run that nothing holds; and what else a project has."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM sqlite_sequence")
        cursor.executemany(
            "INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)",
            [(table, first_id) for table in connection.introspection.table_names()],
        )
    project = builders.project(slug)
    owner = builders.member(project, name, "owner")
    run, other = create_filled_run(project, f"{project.slug}-grpo"), builders.run(project, "other")
    image = data_url(IMAGES["png" if project.slug == SLUGS[0] else "jpeg"])  # no two projects have the same bytes
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": project.slug}]
    row = {
        "prompt": [{"role": "user", "content": content}],
        "response": project.slug,
        "score": 1,
        "group": "g",
        "index": 0,
    }
    index_file(run, lines(row), 3, format="native")
    sample = Sample.objects.get(step__run=run, step__step=3)
    bulk.flag_samples(run, [sample.pk], owner)
    finding = findings.create_finding(project, owner, title="Loops")
    exhibit = findings.add_sample_evidence(finding, sample, owner)
    files = {"meta.json": encode_meta(1), "note.json": json.dumps(project.slug).encode()}
    artifact_check.check_artifact(upload_files(register_artifact(run, 1, files, attempt="a"), files).pk)
    register_artifact(run, 2, attempt="a")
    pin = pins.pin_step(run, 2, owner)[0]
    builders.token(owner, "read", on=project)
    project.memberships.create(user=User.objects.get(username="nora"), role="viewer")
    update_policy(project, owner, {"train": "sample"})
    shared, secret = create_shared_link(project, owner, kind="finding", title="Loops", html="x", days=7)
    view = save_view(owner, page="runs", name="Low", params="q=score<0.2", project=project, shared=True)
    queue = queues.create_queue(project, owner, {"name": "Check", "runs": [run]})
    queues.submit_answers(queue.items.get(position=0), owner, {"review": {"value": "ok"}})
    queues.skip_item(queue.items.get(position=1), owner)
    rescore = create_rescore(run, owner, name="score.v2", kind="function", source="my.py:f", digest="1")[0]
    save_results(rescore, {sample.pk: RescoreResult(0.5)})
    Client().force_login(owner)
    return {
        "slug": project.slug,
        "run": run.uid,
        "other": other.uid,
        "step": "3",
        "group": sample.group,
        "prompt": sample.prompt_key,
        "sample": sample.pk,
        "image": exhibit.shown["images"][0]["sha256"],
        "finding": str(finding.pk),
        "exhibit": str(exhibit.pk),
        "flag": str(Label.objects.flags().get(run=run).pk),
        "pin": str(pin.pk),
        "view": str(view.pk),
        "queue": str(queue.pk),
        "rescore": str(rescore.pk),
        "item": str(queue.items.get(position=1).pk),
        "token": str(Token.objects.get(project=project).pk),
        "shared": str(shared.pk),
        "secret": secret,
        "session": sessions.get_handle(SignInSession.objects.get(user=owner).pk),
        "language": "en",
        "dump": Run.objects.get(pk=run.pk).dumps.latest("pk").sha256,
        "artifact": compute_key(files),
        "file": describe_files(files)["note.json"]["sha256"],
    }


def build_made_up_ids(like: dict[str, str]) -> dict[str, str]:
    """Ids of the same form that do not exist."""
    made_up = {}
    for kind, text in like.items():
        if kind in ("step", "group", "language"):
            made_up[kind] = text
        elif text.isdigit():
            made_up[kind] = str(int(text) - FIRST_FOREIGN_ID + FIRST_MADE_UP_ID)
        elif SLUGS[1] in text:
            made_up[kind] = text.replace(SLUGS[1], SLUGS[2])
        else:
            made_up[kind] = text[::-1]
    return made_up


def insert_ids(value: Any, ids: dict[str, str]) -> Any:
    """The value with the ids in place of `{kind}`."""
    if isinstance(value, dict):
        return {key: insert_ids(inner, ids) for key, inner in value.items()}
    if isinstance(value, list):
        return [insert_ids(inner, ids) for inner in value]
    if not isinstance(value, str):
        return value
    if value.startswith("{#"):
        return int(ids[value[2:-1]])
    return re.sub(r"\{(\w+)\}", lambda match: ids[match[1]], value)


def find_kinds(*values: Any) -> list[str]:
    """The kinds of objects that the values name."""
    return list(dict.fromkeys(re.findall(r"\{#?(\w+)\}", " ".join(map(str, values)))))
