"""The pages. Every page's state is in its URL, in readable parameters: `split q sort sel view attempt`."""

from __future__ import annotations

from django.urls import path

from dashboard.pages.compare import views as compare
from dashboard.pages.findings import add_form
from dashboard.pages.findings import views as findings
from dashboard.pages.flags import views as flags
from dashboard.pages.group import views as group
from dashboard.pages.live import views as live
from dashboard.pages.palette import views as go
from dashboard.pages.pins import pin_box, plan_actions
from dashboard.pages.pins import views as pins
from dashboard.pages.prompt import views as prompt
from dashboard.pages.review import decisions
from dashboard.pages.review import views as review
from dashboard.pages.run import views as run
from dashboard.pages.runs import bulk_actions
from dashboard.pages.runs import views as runs
from dashboard.pages.sample import fields_view, prefetch
from dashboard.pages.sample import views as sample
from dashboard.pages.settings import language, members, preferences, projects, sign_in, tokens
from dashboard.pages.step import views as step

urlpatterns = [
    path("", runs.runs, name="runs"),
    path("runs/<str:uid>/", run.run, name="run"),
    path("runs/<str:uid>/charts.json", run.charts, name="charts"),
    path("runs/<str:uid>/nearest/<str:step>/", run.nearest, name="nearest"),
    path("runs/<str:uid>/steps/<str:step>/", step.step, name="step"),
    path("runs/<str:uid>/groups/<str:step>/<path:group>/", group.group, name="group"),
    path("runs/<str:uid>/prompts/<str:key>/", prompt.prompt, name="prompt"),
    path("samples/", prefetch.ahead, name="ahead"),
    path("samples/<str:pk>/", sample.sample, name="sample"),
    path("samples/<str:pk>/file/", fields_view.download, name="sample-file"),
    path("samples/<str:pk>/flags/", flags.raise_flag, name="flag"),
    path("findings/", findings.listed, name="findings"),
    path("findings/add/", add_form.add, name="finding-add"),
    path("findings/<int:pk>/", findings.finding, name="finding"),
    path("findings/<int:pk>/edit/", findings.edit, name="finding-edit"),
    path("findings/<int:pk>/remove/", findings.remove, name="finding-remove"),
    path("findings/<int:pk>/export/", findings.exported, name="finding-export"),
    path("findings/exhibits/<int:pk>/", findings.exhibit, name="exhibit"),
    path("flags/<int:pk>/withdraw/", flags.withdraw, name="withdraw"),
    path("runs/<str:uid>/flags/", flags.many, name="flag-many"),
    path("runs/<str:uid>/flags/undo/", flags.undo, name="flag-undo"),
    path("runs/<str:uid>/seen/", decisions.look, name="seen"),
    path("samples/<str:pk>/verdict/", decisions.verdict, name="verdict"),
    path("review/", review.review, name="review"),
    path("runs/<str:uid>/pins/", pin_box.pin_step, name="pin-step"),
    path("pins/", pins.pins, name="pins"),
    path("pins/plan/", plan_actions.save, name="plan-save"),
    path("pins/<int:pk>/note/", pin_box.note, name="pin-note"),
    path("pins/<int:pk>/remove/", pin_box.unpin, name="unpin"),
    path("compare/", compare.compare, name="compare"),
    path("go/", go.go, name="go"),
    path("keys/", preferences.keys, name="keys"),
    path("tidy/", bulk_actions.tidy, name="tidy"),
    path("tidy/delete/", bulk_actions.delete, name="tidy-delete"),
    path("live/", live.live, name="live"),
    path("settings/", projects.settings, name="settings"),
    path("settings/password/", members.password, name="password"),
    path("settings/<str:slug>/", projects.project, name="project"),
    path("settings/<str:slug>/members/", members.save, name="members"),
    path("settings/<str:slug>/members/link/", members.link, name="member-link"),
    path("settings/<str:slug>/reasons/", projects.reasons, name="reasons"),
    path("settings/<str:slug>/correct/", projects.correct, name="correct"),
    path("settings/<str:slug>/loosen/", plan_actions.loosen, name="loosen"),
    path("settings/<str:slug>/tokens/", tokens.issue, name="tokens"),
    path("settings/<str:slug>/tokens/<int:pk>/revoke/", tokens.revoke, name="revoke"),
    path("language/", language.language, name="language"),
    path("language/<str:language>.js", language.catalogue, name="catalogue"),
    path("theme/", preferences.theme, name="theme"),
    path("sign-in/", sign_in.sign_in, name="sign-in"),
    path("sign-in/link/", sign_in.by_link, name="sign-in-link"),
    path("sign-out/", sign_in.sign_out, name="sign-out"),
]
