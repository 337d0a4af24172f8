"""Review: a queue of samples at the left, one of them in the middle, what may be said of it at the right."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import lookups, panels, query_messages, step_strip
from dashboard.pages.common.url_state import Address, Ask, step_number, whole
from dashboard.pages.review import queue_list
from dashboard.pages.sample import pane
from rollouts.errors import BadInput
from rollouts.models import Run, RunQuerySet, Sample, Step
from rollouts.review import queues, viewed

PANELS = {"queue": "review/queue.html", "strip": "common/strip.html", "alive": "common/last_update.html"}
MOST_RUNS = 50


@dataclass(frozen=True, slots=True)
class Look(Address):
    """`queue` empty is the query's where there is one, else the first; `upto`, `seed` and `batch` say which samples it
    holds, whatever arrives meanwhile, or `ids` where judging them changes what the query finds."""

    run: str = ""
    queue: str = ""
    q: str = ""
    upto: str = ""
    seed: str = ""
    batch: str = ""
    ids: str = ""
    sel: str = ""

    @classmethod
    def knows(cls, name: str, word: str) -> bool:
        match name:
            case "queue":
                return word in queues.NAMES
            case "upto":
                return step_number(word) is not None
            case "seed":
                return whole(word, least=1, most=queues.MOST_SEED) is not None
            case "batch":
                return whole(word, least=1) is not None
            case _:
                return Address.knows(name, word)

    @property
    def named(self) -> queues.Queue:
        return queues.named(self.queue or ("query" if self.q.strip() else ""))

    @property
    def exact(self) -> bool:
        """Whether it says which samples are meant."""
        told = self.seed if self.named.name == "random" else self.ids or not queues.passing(self.named, self.q)
        return bool(self.run and self.upto and self.batch and told)

    @property
    def only(self) -> tuple[str, ...]:
        return tuple(one for one in self.ids.split(",") if one)

    def other(self, queue: str) -> str:
        """The link of another queue, opened anew."""
        return self.anew(queue=queue, seed="", q=self.q if queue == "query" else "")

    def anew(self, **changes: str) -> str:
        """The link of the same queue as it is now."""
        return self.link(**{"upto": "", "batch": "", "ids": "", "sel": "", **changes})


@dataclass(frozen=True, slots=True)
class Tab:
    title: str
    about: str
    link: str
    on: bool


@dataclass(slots=True)
class Found:
    """What an address asks for: `look` says it exactly. `error` is the sentence for a query that cannot be read, which
    has no batch; `newest` the newest step that has samples."""

    look: Look
    asked: queues.Asked
    newest: int
    batch: queues.Batch | None = None
    error: Any = ""


@login_required
@require_safe
def review(request: HttpRequest) -> HttpResponseBase:
    """`?run=&split=&queue=&q=`; an address that leaves open which samples are meant is answered with one that does
    not."""
    look = Look.of(request.GET)
    run = permissions.run_or_404(request, look.run) if look.run else with_samples(request).first()
    if run is None:
        return panels.answer(request, "review/empty.html", {}, dict)
    if not look.exact and not panels.target(request):
        found = find(request, run, look)
        if found.batch and found.look != look:
            return HttpResponseRedirect(request.path + found.look.link())
    role, status = run.project.role_of(request.user), run.status
    return panels.answer(
        request,
        "review/page.html",
        PANELS,
        lambda: context(request, run, look, role) | {"status": status},
        *(run.version, status, role, run.project.reasons, viewed.reader(run, request.user.pk)),
    )


def with_samples(request: HttpRequest) -> RunQuerySet:
    """Runs to choose from, those with the latest news first."""
    there = Exists(Step.objects.filter(run=OuterRef("pk"), samples__gt=0))
    runs = permissions.visible_runs(request).filter(there, archived_at=None)
    return runs.select_related("project").order_by("-seen_at")


def find(request: HttpRequest, run: Run, look: Look) -> Found:
    split = look.split or step_strip.first_split(run)
    kind = step_strip.kind_of(run, split)
    newest = queues.newest_step(run, split, kind)
    upto = step_number(look.upto)
    seed = whole(look.seed, least=1) or 1 + secrets.randbelow(queues.MOST_SEED)
    asked = queues.Asked(look.named, split, kind, newest if upto is None else upto, seed, look.q, look.only)
    try:
        batch = queues.batch(run, asked, lookups.person(request), whole(look.batch, least=1))
    except BadInput as problem:
        return Found(look, asked, newest, error=query_messages.said(look.q, problem))
    drawn = str(seed) if asked.queue.name == "random" else ""
    exact = replace(look, run=run.uid, upto=str(asked.upto), seed=drawn, batch=str(batch.number))
    if queues.passing(asked.queue, asked.q) and not look.ids:
        exact = replace(exact, batch="1", ids=",".join(queues.beginnings(batch.samples)))
    return Found(exact, asked, newest, batch)


def context(request: HttpRequest, run: Run, look: Look, role: str) -> dict[str, Any]:
    panel = panels.target(request)
    found = find(request, run, look)
    ask = Ask.of(request.GET)
    frame = {
        "run": run, "project": run.project, "role": role, "ask": ask, "split": found.asked.split, "current": None,
        "tab": "review", "found": found, "look": found.look,
        "rows": queue_list.rows(run, found.asked, found.batch, request.user.pk),
        "may_judge": lookups.may(role, "annotator"), "queues": offered(found.look),
        "about": _(found.asked.queue.about),
    }  # fmt: skip
    if panel == "queue":
        return frame
    frame["strip"] = step_strip.of(run, found.asked.split)
    if panel in {"strip", "alive"}:
        return frame
    sample = chosen(request, run, found)
    others = list(with_samples(request).exclude(pk=run.pk)[: MOST_RUNS - 1])
    frame |= {"runs": [run, *others], "reasons": run.project.reasons}
    if sample is None:
        return frame
    after = queue_list.following(found.batch, sample.pk)
    back = found.look.link(sel=after) if after else found.look.anew()
    return frame | {"selected": sample.pk, "next": request.path + back} | pane.shown(request, sample, ask, role)


def offered(look: Look) -> list[Tab]:
    """The queues as tabs; the query's where there is a query."""
    shown = [*queues.QUEUES, queues.OWN] if look.q.strip() else queues.QUEUES
    return [Tab(_(one.title), _(one.about), look.other(one.name), one is look.named) for one in shown]


def chosen(request: HttpRequest, run: Run, found: Found) -> Sample | None:
    """The sample that the address names, else the first that nothing was said of. Raises Http404."""
    if found.look.sel:
        sample = permissions.sample_or_404(request, found.look.sel)
        if sample.step.run_id != run.pk:
            raise Http404(_("This sample is of another run."))
        return sample
    if not found.batch or not found.batch.samples:
        return None
    todo = [one for one in found.batch.samples if one.pk not in found.batch.verdicts]
    sample = (todo or found.batch.samples)[0]
    sample.step.run = run
    return sample
