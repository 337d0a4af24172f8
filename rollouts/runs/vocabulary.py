"""The fields of a query about runs."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext_noop as N_

from rollouts.query import Vocabulary

STATUSES: Final = ("running", "silent", "finished", "failed", "planned")

RUN_VOCABULARY: Final = Vocabulary(
    number_fields=("score", "best", "step", "steps", "samples", "flags", "truncated", "seed"),
    integer_fields=("step", "steps", "samples", "flags", "seed"),
    name_fields=(
        "name", "tag", "status", "project", "owner", "trainer", "framework", "algorithm", "model", "host",
    ),
    property_names=("archived", "pinned", "flagged", "mine"),
    missing_names=("score", "samples", "config", "tag"),
    choices=(("status", STATUSES),),
    age_fields=("created", "updated"),
    key_example="config.lr=1e-6",
    keys_have_names=True,
)  # fmt: skip

FIELD_DESCRIPTIONS: Final = {
    "score": N_("mean score of the latest step"), "best": N_("highest mean score of a step"),
    "step": N_("latest step"), "steps": N_("number of steps"), "samples": N_("number of samples"),
    "flags": N_("number of flags"), "truncated": N_("truncated at the latest step"), "seed": N_("seed in the config"),
    "name": N_("part of the name"), "tag": N_("tag"), "status": N_("status of the run"), "project": N_("project"),
    "owner": N_("who started it"), "trainer": N_("trainer"), "framework": N_("trainer"),
    "algorithm": N_("algorithm in the config"), "model": N_("part of the model's name"), "host": N_("part of a host"),
    "created": N_("time since the run was created"), "updated": N_("time since the last data"),
    "is": N_("property"), "no": N_("missing field"),
}  # fmt: skip
PROPERTY_DESCRIPTIONS: Final = {
    "is:archived": N_("archived runs, which are hidden otherwise"), "is:pinned": N_("has a pinned step"),
    "is:flagged": N_("has a flagged sample"), "is:mine": N_("started by you"), "no:score": N_("has no score"),
    "no:samples": N_("has no samples"), "no:config": N_("sent no config"), "no:tag": N_("has no tag"),
}  # fmt: skip
