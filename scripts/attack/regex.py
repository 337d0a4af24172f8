"""One person runs the worst regular expressions without a pause; another person's plain search must stay fast."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from scripts.attack.load import Measurements, build_step, open_run, push_step
from tests.support.server import Product

STEPS, ROWS, WORDS_PER_ROW = 20, 128, 400  # 5 MB of text
PATTERNS = (r"/(.{1,50}x){20}Q/", r"/(.{1,500}x){2}[^x\w\s]/", r"/(\w+\s?)*!/")
ATTACKERS = 3  # requests of one person at once
MAX_RATIO = 2.0
CREATE_TOKEN = (
    "from django.contrib.auth.models import User; from rollouts.models import Membership, Project, Token; "
    "user, project = User.objects.create_user('mallory'), Project.objects.get(slug='attack'); "
    "Membership.objects.create(project=project, user=user, role='viewer'); "
    "print('TOKEN', Token.issue(user=user, name='attack', scopes=['read'], project=project)[1])"
)


def create_second_token(server: Product) -> str:
    """Returns the token of a reader of the project: limits are per person."""
    root = Path(__file__).parents[2]
    environment = {**server.environ, "ROLLOUTDECK_DATA": str(server.data)}
    command = [sys.executable, str(root / "manage.py"), "shell", "-c", CREATE_TOKEN]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    if "TOKEN " not in done.stdout:
        raise SystemExit(f"no second person: {done.stderr[-500:]}")
    return done.stdout.split("TOKEN ")[1].split()[0]


def search(measured: Measurements, server: Product, kind: str, uid: str, token: str, q: str) -> None:
    query = urllib.parse.urlencode({"run": uid, "q": q})
    path = f"/api/v1/samples/?{query}"
    measured.request(kind, server.port, "GET", path, Authorization=f"Bearer {token}")


def measure_plain(measured: Measurements, server: Product, uid: str, kind: str, seconds: float) -> float:
    """Returns the median of plain searches for `seconds`, each for another word, so that no answer is stored."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        search(measured, server, kind, uid, server.token, f'"axes and {kind} {number}"')
    return statistics.median(measured.seconds[kind])


def run_regex(server: Product, seconds: float) -> bool:
    """Prints the plain search alone and next to the attack. Returns whether the ratio is within the budget."""
    measured, chance = Measurements(), random.Random(1)
    uid = open_run(server, "searched")
    for step in range(1, STEPS + 1):
        push_step(measured, server, uid, step, build_step(chance, step, ROWS, WORDS_PER_ROW), kind="seed")
    deadline = time.monotonic() + 300
    while server.get(f"runs/{uid}/")["dumps"].get("indexed", 0) < STEPS and time.monotonic() < deadline:
        time.sleep(0.5)
    token = create_second_token(server)
    search(measured, server, "first", uid, server.token, '"axes"')  # starts a search process
    alone = measure_plain(measured, server, uid, "alone", seconds)
    end = time.monotonic() + seconds + 2

    def attack(number: int) -> None:
        attacks = Measurements()  # their answers are errors of the limit, as they should be
        while time.monotonic() < end:
            search(attacks, server, "regex", uid, token, PATTERNS[number % len(PATTERNS)])
        totals.append(len(attacks.seconds["regex"]))

    totals: list[int] = []
    attackers = [threading.Thread(target=attack, args=(number,)) for number in range(ATTACKERS)]
    for thread in attackers:
        thread.start()
    time.sleep(2)
    during = measure_plain(measured, server, uid, "during", seconds)
    for thread in attackers:
        thread.join()
    print(f"plain search alone            median {alone * 1000:.0f} ms of {len(measured.seconds['alone'])}")
    print(
        f"next to {ATTACKERS} worst patterns       median {during * 1000:.0f} ms of {len(measured.seconds['during'])}"
    )
    print(f"answers to the patterns       {sum(totals)}")
    print(f"errors of plain searches      {len(measured.errors)}", *measured.errors[:5], sep="\n  ")
    is_met = during <= MAX_RATIO * alone and not measured.errors
    print(f"ratio {during / alone:.2f} (budget {MAX_RATIO:g}): {'met' if is_met else 'MISSED'}")
    return is_met
