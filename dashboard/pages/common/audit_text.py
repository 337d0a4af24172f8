"""The words for an audit entry."""

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from rollouts.models import AuditEntry

VERB_NAMES = {
    "project.create": N_("created the project"), "project.delete": N_("deleted a project"),
    "role.set": N_("changed a role"),
    "member.link": N_("made a sign-in link"),
    "role.group": N_("got a role by a group"), "admin.group": N_("changed a server admin by a group"),
    "admin.set": N_("changed a server admin"),
    "account.disable": N_("disabled an account"), "account.enable": N_("enabled an account"),
    "account.create": N_("got an account at the first sign-in"), "account.link": N_("linked an account to a sign-in"),
    "account.unlink": N_("removed the link of an account to a sign-in"),
    "token.create": N_("created a token"), "token.revoke": N_("revoked a token"),
    "pin.create": N_("pinned a step"), "pin.note": N_("edited the note of a pin"), "pin.remove": N_("removed a pin"),
    "flag.raise": N_("flagged samples"), "flag.withdraw": N_("withdrew a flag"), "flag.undo": N_("undid a flag action"),
    "label.undo": N_("undid an action on labels"), "label.withdraw": N_("withdrew a label"),
    "label.import": N_("imported labels"),
    "rubric.save": N_("changed the rubric"),
    "guidance.save": N_("changed the guidance rules"),
    "queue.create": N_("created a review queue"), "queue.update": N_("changed a review queue"),
    "queue.close": N_("closed a review queue"), "queue.reopen": N_("opened a review queue again"),
    "queue.decide": N_("decided an answer in a review queue"),
    "queue.undecide": N_("withdrew a decision in a review queue"),
    "rescore.create": N_("started a re-score"), "rescore.delete": N_("deleted a re-score"),
    "rescore.update": N_("changed the threshold of a re-score"),
    "plan.save": N_("saved a replay plan"), "correct.set": N_("changed the correctness rule"),
    "run.tag": N_("tagged a run"), "run.untag": N_("removed a tag"), "run.archive": N_("archived a run"),
    "run.unarchive": N_("restored a run from the archive"), "run.index": N_("re-indexed a run"),
    "run.delete": N_("deleted a run"), "run.restore": N_("restored a run"),
    "finding.create": N_("created a finding"), "finding.edit": N_("edited a finding"),
    "finding.remove": N_("removed a finding"), "finding.restore": N_("restored a finding"),
    "plan.loosen": N_("downgraded a check to a warning"), "plan.tighten": N_("enforced a check again"),
    "finding.take_out": N_("removed evidence from a finding"),
    "share.create": N_("created a shared link"), "share.use": N_("a shared link was opened"),
    "share.revoke": N_("revoked a shared link"),
    "retention.set": N_("changed the retention policy"), "retention.apply": N_("started a retention pass"),
    "quota.set": N_("changed the quota"), "prompt.forget": N_("removed a prompt everywhere"),
}  # fmt: skip
VERSION_VERBS = ("rubric.save", "guidance.save")
DETAIL_NAMES = {
    "project": N_("project"),
    "role": N_("role"), "group": N_("group"), "rule": N_("rule"), "before": N_("before"), "reason": N_("reason"),
    "label": N_("label"), "text": N_("text"), "flags": N_("flags"), "labels": N_("labels"),
    "questions": N_("questions"), "name": N_("name"), "author": N_("author"), "tag": N_("tag"),
    "scopes": N_("scopes"), "step": N_("step"), "split": N_("split"), "note": N_("note"), "new": N_("new labels"),
    "changed": N_("changed labels"), "threshold": N_("threshold"),
}  # fmt: skip
MAX_DETAIL_CHARS = 200


def describe_audit_entry(entry: AuditEntry) -> tuple[str, str, str]:
    """(what was done, to what, details that tell more)"""
    details = [
        f"{_(name)}: {format_detail(entry.detail[key])}"
        for key, name in DETAIL_NAMES.items()
        if entry.detail.get(key) not in (None, "", [])
    ]
    return _(VERB_NAMES.get(entry.verb, entry.verb)), name_subject(entry), " · ".join(details)[:MAX_DETAIL_CHARS]


def name_subject(entry: AuditEntry) -> str:
    """The number of samples or of the version in the language of the reader: the stored words are in that of the person
    who acted. Older entries lack the number."""
    if entry.verb in VERSION_VERBS and entry.subject.isdecimal():
        return _("version {number}").format(number=entry.subject)
    count = entry.detail.get("sample_count")
    if not isinstance(count, int):
        return entry.subject
    return ngettext("{count} sample", "{count} samples", count).format(count=f"{count:,}")


def format_detail(value: Any) -> str:
    return ", ".join(str(part) for part in value) if isinstance(value, list) else str(value)
