"""All pages, for the tests that open each of them. `test_access_matrix.py` fails if a page is missing here.

`path` has placeholders, `{run} {configured} {queue} {rescore} {sample} {key} {finding} {shared} {link} {project}`.
`fill_pages` of the browser tests returns their values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ListedPage:
    """`name` is that of the URL pattern. `phone`: the page is also tested on a phone, in Chinese."""

    name: str
    path: str
    signed_in: bool = True
    phone: bool = False


COMPARED = "/compare/?of={run}@1,{run}@2&split=train"
PAGES = (
    ListedPage("runs", "/", phone=True),
    ListedPage("run", "/runs/{run}/", phone=True),
    ListedPage("run", "/runs/{run}/?show=table"),
    ListedPage("run", "/runs/{run}/?show=prompts"),
    ListedPage("timeline", "/runs/{run}/timeline/", phone=True),
    ListedPage("reward-check", "/runs/{run}/reward-check/", phone=True),
    ListedPage("rescores", "/runs/{run}/rescores/", phone=True),
    ListedPage("rescore", "/runs/{run}/rescores/{rescore}/", phone=True),
    ListedPage("export", "/export/?run={run}&q=score>=0", phone=True),
    ListedPage("export", "/export/?project={project}&q=score>=0"),
    ListedPage("context", "/runs/{run}/context/"),
    ListedPage("context", "/runs/{configured}/context/?against={run}", phone=True),
    ListedPage("step", "/runs/{run}/steps/latest/", phone=True),
    ListedPage("step", "/runs/{run}/steps/all/?q=is:wrong"),
    ListedPage("step", "/runs/{run}/steps/2/?q=score>9"),
    ListedPage("group", "/runs/{run}/groups/2/a/?whole=all"),
    ListedPage("group", "/runs/{run}/groups/2/b/"),
    ListedPage("prompt", "/runs/{run}/prompts/{key}/"),
    ListedPage("sample", "/samples/{sample}/", phone=True),
    ListedPage("sample", "/samples/{sample}/?view=json"),
    ListedPage("sample-labels", "/samples/{sample}/labels/", phone=True),
    ListedPage("compare", COMPARED),
    ListedPage("compare", COMPARED + "&sel={key}"),
    ListedPage("compare", "/compare/"),
    ListedPage("search", "/search/?q=Beginning", phone=True),
    ListedPage("live", "/live/"),
    ListedPage("review", "/review/?run={run}", phone=True),
    ListedPage("review", "/review/?queue=pinned"),
    ListedPage("queues", "/queues/", phone=True),
    ListedPage("queue-new", "/queues/new/?run={run}"),
    ListedPage("queue", "/queues/{queue}/"),
    ListedPage("queue-agreement", "/queues/{queue}/agreement/", phone=True),
    ListedPage("queue-review", "/queues/{queue}/review/", phone=True),
    ListedPage("pins", "/pins/", phone=True),
    ListedPage("pins", "/pins/?project={project}&plan=stops"),
    ListedPage("findings", "/findings/"),
    ListedPage("finding", "/findings/{finding}/"),
    ListedPage("finding-add", "/findings/add/?project={project}"),
    ListedPage("share", "/share/?finding={finding}"),
    ListedPage("shared", "{shared}", signed_in=False),
    ListedPage("settings", "/settings/"),
    ListedPage("project", "/settings/{project}/"),
    ListedPage("retention", "/settings/{project}/retention/"),
    ListedPage("rubric", "/settings/{project}/rubric/", phone=True),
    ListedPage("guidance", "/settings/{project}/guidance/", phone=True),
    ListedPage("audit", "/audit/?project={project}"),
    ListedPage("disk", "/disk/?project={project}"),
    ListedPage("second-factor", "/second-factor/"),
    ListedPage("sign-in", "/sign-in/", signed_in=False),
    ListedPage("sign-in-link", "{link}", signed_in=False),
    ListedPage("api-docs", "/api/docs/"),
)
