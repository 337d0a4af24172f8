"""Helpers that read the pages of the review."""

from __future__ import annotations

import re
from typing import Any

from django.test import Client

from rollouts.models import Run, Sample


def list_sample_ids(run: Run, **which: Any) -> list[str]:
    result = Sample.objects.filter(step__run=run, **which).order_by("step__step", "ordinal")
    return list(result.values_list("pk", flat=True))


def get_page(client: Client, path: str) -> str:
    answer = client.get(path, follow=True)
    assert answer.status_code == 200, answer.content
    return str(answer.content.decode())


def list_row_ids(html: str) -> list[str]:
    return re.findall(r'<tr id="r-\w+" data-id="(\w+)"', html)


def get_review_page(client: Client, run: Run, query: str = "") -> str:
    return get_page(client, f"/review/?run={run.uid}{query}")


def find_open_sample(html: str) -> str:
    result = re.search(r'<article class="sample" data-id="(\w+)"', html)
    return result[1] if result else ""
