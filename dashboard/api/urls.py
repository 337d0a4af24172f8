"""Addresses below /api/. PUT of dumps and files is answered before Django, see `dashboard/uploads/app.py`."""

from __future__ import annotations

from django.urls import path, re_path

from dashboard.api import docs
from dashboard.api import exceptions as errors
from dashboard.api.views import (
    artifacts,
    compare,
    completions,
    dumps,
    findings,
    flags,
    metrics,
    pins,
    plans,
    projects,
    replays,
    runs,
    samples,
    steps,
    tokens,
)

urlpatterns = [
    path("v1/runs/", runs.Runs.as_view()),
    path("v1/runs/<str:uid>/", runs.OneRun.as_view()),
    path("v1/runs/<str:uid>/heartbeat/", runs.Heartbeat.as_view()),
    path("v1/runs/<str:uid>/finish/", runs.Finish.as_view()),
    path("v1/runs/<str:uid>/metrics/", metrics.Metrics.as_view()),
    path("v1/runs/<str:uid>/steps/", steps.Steps.as_view()),
    path("v1/runs/<str:uid>/dumps/", dumps.Dumps.as_view()),
    path("v1/runs/<str:uid>/dumps/<str:sha256>/", dumps.OneDump.as_view()),
    path("v1/runs/<str:uid>/index/", dumps.Index.as_view()),
    path("v1/runs/<str:uid>/artifacts/", artifacts.Artifacts.as_view()),
    path("v1/runs/<str:uid>/artifacts/<str:key>/files/<str:sha256>/", artifacts.OneFile.as_view()),
    path("v1/runs/<str:uid>/wanted/", artifacts.Wanted.as_view()),
    path("v1/runs/<str:uid>/replay-plan/", plans.RunPlan.as_view()),
    path("v1/runs/<str:uid>/replays/", replays.Replays.as_view()),
    path("v1/samples/", samples.Samples.as_view()),
    path("v1/samples/<str:pk>/", samples.OneSample.as_view()),
    path("v1/samples/<str:pk>/history/", samples.History.as_view()),
    path("v1/samples/<str:pk>/tokens/", samples.Tokens.as_view()),
    path("v1/findings/", findings.Findings.as_view()),
    path("v1/findings/<int:pk>/", findings.OneFinding.as_view()),
    path("v1/findings/<int:pk>/exhibits/", findings.Exhibits.as_view()),
    path("v1/findings/<int:pk>/exhibits/<int:exhibit_pk>/", findings.OneExhibit.as_view()),
    path("v1/flags/", flags.Flags.as_view()),
    path("v1/flags/<int:pk>/", flags.OneFlag.as_view()),
    path("v1/pins/", pins.Pins.as_view()),
    path("v1/pins/<int:pk>/", pins.OnePin.as_view()),
    path("v1/compare/", compare.Compare.as_view()),
    path("v1/completions/", completions.Completions.as_view(), name="completions"),
    path("v1/exports/samples/", samples.ExportedSamples.as_view(), name="export-samples"),
    path("v1/projects/", projects.Projects.as_view()),
    path("v1/projects/<str:slug>/", projects.OneProject.as_view()),
    path("v1/projects/<str:slug>/members/", projects.Members.as_view()),
    path("v1/projects/<str:slug>/replay-plan/", plans.ProjectPlan.as_view()),
    path("v1/tokens/", tokens.Tokens.as_view()),
    path("v1/tokens/<int:pk>/", tokens.OneToken.as_view()),
    path("schema/", docs.Schema.as_view(), name="api-schema"),
    path("docs/", docs.docs, name="api-docs"),
    re_path("", errors.Nowhere.as_view()),
]
