"""The pages. Every page's state is in its URL, in readable parameters: `split q sort sel view attempt`."""

from __future__ import annotations

from django.urls import path

from dashboard.pages import (
    compare,
    flags,
    group,
    live,
    members,
    pinning,
    pins,
    planning,
    projects,
    prompt,
    run,
    runs,
    sample,
    signin,
    step,
    theme,
    tokens,
)

urlpatterns = [
    path("", runs.runs, name="runs"),
    path("runs/<str:uid>/", run.run, name="run"),
    path("runs/<str:uid>/charts.json", run.charts, name="charts"),
    path("runs/<str:uid>/steps/<str:step>/", step.step, name="step"),
    path("runs/<str:uid>/groups/<str:step>/<path:group>/", group.group, name="group"),
    path("runs/<str:uid>/prompts/<str:key>/", prompt.prompt, name="prompt"),
    path("samples/<str:pk>/", sample.sample, name="sample"),
    path("samples/<str:pk>/flags/", flags.raise_flag, name="flag"),
    path("flags/<int:pk>/withdraw/", flags.withdraw, name="withdraw"),
    path("runs/<str:uid>/pins/", pinning.pin_step, name="pin-step"),
    path("pins/", pins.pins, name="pins"),
    path("pins/plan/", planning.save, name="plan-save"),
    path("pins/<int:pk>/note/", pinning.note, name="pin-note"),
    path("pins/<int:pk>/remove/", pinning.unpin, name="unpin"),
    path("compare/", compare.compare, name="compare"),
    path("live/", live.live, name="live"),
    path("settings/", projects.settings, name="settings"),
    path("settings/password/", members.password, name="password"),
    path("settings/<str:slug>/", projects.project, name="project"),
    path("settings/<str:slug>/members/", members.save, name="members"),
    path("settings/<str:slug>/reasons/", projects.reasons, name="reasons"),
    path("settings/<str:slug>/correct/", projects.correct, name="correct"),
    path("settings/<str:slug>/loosen/", planning.loosen, name="loosen"),
    path("settings/<str:slug>/tokens/", tokens.issue, name="tokens"),
    path("settings/<str:slug>/tokens/<int:pk>/revoke/", tokens.revoke, name="revoke"),
    path("theme/", theme.theme, name="theme"),
    path("sign-in/", signin.sign_in, name="sign-in"),
    path("sign-in/link/", signin.by_link, name="sign-in-link"),
    path("sign-out/", signin.sign_out, name="sign-out"),
]
