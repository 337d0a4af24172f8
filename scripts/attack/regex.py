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
# In place of %s each request has another character, so that no result is in a cache.
PATTERNS = (r"/(.{1,50}x){20}[Q%s]/", r"/(.{1,500}x){2}[^x\w\s%s]/", r"/(\w+\s?)*[!%s]/")
FIRST_CHARACTER = 0x4E00  # Chinese characters: the texts have none
ATTACKERS = 3  # requests of one person at once
LIMITS = ("regex: 422 ", "regex: 429 ")  # of the time of a search, and of the searches of one person
MIN_SECONDS = 1.0  # that the slowest pattern takes; otherwise there was no attack
INDEX_SECONDS = 300
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
    deadline = time.monotonic() + INDEX_SECONDS
    while server.get(f"runs/{uid}/")["dumps"].get("indexed", 0) < STEPS:
        if time.monotonic() > deadline:
            raise SystemExit(f"The samples were not indexed within {INDEX_SECONDS} seconds: {measured.errors[:3]}")
        time.sleep(0.5)
    token = create_second_token(server)
    search(measured, server, "first", uid, server.token, '"axes"')  # starts a search process
    alone = measure_plain(measured, server, uid, "alone", seconds)
    end = time.monotonic() + seconds + 2

    def attack(number: int) -> None:
        pattern, count = PATTERNS[number % len(PATTERNS)], 0
        while time.monotonic() < end:
            search(attacks[number], server, "regex", uid, token, pattern % chr(FIRST_CHARACTER + count))
            count += 1

    attacks = [Measurements() for _ in range(ATTACKERS)]
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
    medians = [statistics.median(attacker.seconds["regex"]) for attacker in attacks]
    answers = [error for attacker in attacks for error in attacker.errors]
    failed = [error for error in answers if not error.startswith(LIMITS)]
    print(f"answers to the patterns       {sum(len(attacker.seconds['regex']) for attacker in attacks)}")
    print(f"  stopped by a limit          {len(answers) - len(failed)}")
    print(f"  median of each pattern      {', '.join(f'{median:.2f} s' for median in medians)}")
    print(f"  other errors                {len(failed)}", *failed[:5], sep="\n  ")
    print(f"errors of plain searches      {len(measured.errors)}", *measured.errors[:5], sep="\n  ")
    if max(medians) < MIN_SECONDS:
        print(f"No pattern took {MIN_SECONDS:g} s: this was no attack.")
    is_met = during <= MAX_RATIO * alone and not measured.errors and not failed and max(medians) >= MIN_SECONDS
    print(f"ratio {during / alone:.2f} (budget {MAX_RATIO:g}): {'met' if is_met else 'MISSED'}")
    return is_met
