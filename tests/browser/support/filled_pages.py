"""Creates the data that the pages of `tests/support/page_list.py` show."""

from __future__ import annotations

from dashboard.pages.settings.audit import ENTRIES_PER_PAGE
from tests.browser.support.measure import Visit
from tests.browser.support.training import Training
from tests.browser.test_group import group
from tests.browser.test_pins import plan_steps

CONFIG = {"actor": {"lr": 1e-6, "clip": 0.2}, "data": {"train_files": "data/" + "long-name/" * 20}}


def fill_pages(training: Training, visit: Visit) -> dict[str, str]:
    """Creates, in a project that no other test writes to: two steps with a small group, a folded one and an empty
    response; a run with a configuration; the metrics of an asynchronous run; a flag; a finding with its link; 12 pins
    in a plan; a saved view; review queues, one of them blind and one closed; a re-score. Returns the values for the
    placeholders in the paths."""
    post, uid, project = training.product.post, training.uid, training.project
    odd = {"prompt": "ask", "response": "", "score": None, "data_source": "gsm8k", "ground_truth": "1"}
    timed = [{**row, "timing": {"generation": 2.0 + at}} for at, row in enumerate(group("a", [0.0, 1.0, 0.5]))]
    rows = [*timed, *group("b", [1.0] * 7 + [0.0] * 5, ["204"] * 7 + ["210"] * 5), odd]
    for step in (1, 2):
        training.push_and_wait(step, 16, [{**row, "policy_version": 1, "trainer_version": step} for row in rows])
    values = {"actor/loss": 1.0, "perf/step_time": 40.0, "perf/rollout_time": 30.0, "perf/actor_train_time": 20.0}
    points = [{"step": step, "time": 60.0 * step, "values": values} for step in (1, 2)]
    answer = training.server.send_json("POST", f"runs/{uid}/metrics/", {"attempt": "a", "points": points})
    assert answer.is_success, answer.error_message
    config = {"project": project, "name": "configured", "attempt": "a", "config": CONFIG}
    configured = training.server.send_json("POST", "runs/", config).json()["id"]
    sample = training.list_samples(2)[0]["id"]
    post("flags/", {"sample": sample, "text": "loops"})
    plan_steps(training, 12, "stops")
    finding = post("findings/", {"project": project, "title": "Loops"})["id"]
    for exhibit in ({"sample": sample}, {"run": uid, "q": "score<1", "split": "train", "step": 2}):
        post(f"findings/{finding}/exhibits/", exhibit)
    post("views/", {"page": "runs", "name": "Low", "params": "q=score<0.2", "project": project, "shared": True})
    queue = post("queues/", {"project": project, "name": "Check", "runs": [uid], "due_at": "2030-01-01T18:00"})["id"]
    post("queues/", {"project": project, "name": "Blind", "runs": [uid], "is_blind": True})
    closed = post("queues/", {"project": project, "name": "Closed", "runs": [uid]})["id"]
    for at in range(ENTRIES_PER_PAGE + 1):  # more entries of the audit log than a page has
        post(f"queues/{closed}/", {"closed": at % 2 == 0}, "PATCH")
    rescore = post("rescores/", {"run": uid, "name": "score.v2", "source": "my.py:f", "digest": "1"})["id"]
    results = [
        {"sample": row["id"], "value": at % 2, "parts": {"acc": 1}} for at, row in enumerate(training.list_samples(2))
    ]
    post(f"rescores/{rescore}/results/", {"results": results})
    return {
        "run": uid,
        "queue": str(queue),
        "rescore": str(rescore),
        "configured": configured,
        "project": project,
        "sample": sample,
        "key": training.product.get(f"samples/{sample}/")["prompt_key"],
        "finding": str(finding),
        "shared": create_share_link(visit, f"/share/?finding={finding}"),
        "link": add_member(visit, project),
    }


def create_share_link(visit: Visit, path: str) -> str:
    """Creates a shared link. Returns its path."""
    page = visit.go(path)
    page.locator("main form button").last.click()
    address = page.locator(".secret pre").inner_text()
    return address.removeprefix(visit.site.url)


def add_member(visit: Visit, project: str) -> str:
    """Adds a member. Returns the path of their sign-in link."""
    page = visit.go(f"/settings/{project}/")
    page.fill("#new-member", f"nia-{project}")
    page.get_by_role("button", name="Add").click()
    return page.locator(".secret pre").inner_text().removeprefix(visit.site.url)
