"""Looks for known vulnerabilities of the server's packages and for secrets in tracked files: python -m scripts.audit.

Exit status 1: a vulnerability, a secret that is not in .secrets.baseline, or pip-audit failed. If the vulnerability
service cannot be reached, a line says what was not checked, and the status stays 0: an outage is not a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ".secrets.baseline"
SERVICE_TIMEOUT = 15  # seconds for each answer
MAX_SECONDS = 300  # for all packages
# What pip-audit prints if the service does not answer, or not with what it should: an error of its HTTP client.
OUTAGE = re.compile(r"\b(requests|urllib3)\.exceptions\.|Could not connect to|is not redirecting properly")
# Recorded data, translations and vendored files are full of hashes and base64, which look like secrets.
NOT_SCANNED = re.compile(
    r"(tests/data|static/vendor|dashboard/locale|rollouts/demo|docs/images)/|\.secrets\.baseline|.*\.(svg|min\.js)\Z"
)


def list_server_packages() -> dict[str, str]:
    """Returns the installed versions of all packages that the server extra needs, by name."""
    versions: dict[str, str] = {}
    waiting = [Requirement("rolloutdeck[server]")]
    seen = set()
    while waiting:
        requirement = waiting.pop()
        key = (requirement.name.lower(), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        distribution = metadata.distribution(requirement.name)
        if requirement.name != "rolloutdeck":
            versions[distribution.metadata["Name"]] = distribution.version
        waiting += _list_requirements(distribution, requirement.extras)
    return versions


def _list_requirements(distribution: metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in distribution.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield requirement


def audit_packages(versions: dict[str, str]) -> bool:
    """Prints the known vulnerabilities. Returns whether there is none, also if the service did not answer. False if
    pip-audit failed otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("".join(f"{name}=={version}\n" for name, version in sorted(versions.items())))
        command = [
            sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps", "--disable-pip",
            "--format", "json", "--progress-spinner", "off", "--timeout", str(SERVICE_TIMEOUT),
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return report_packages(None, len(versions), f"no answer in {MAX_SECONDS} s")
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    try:
        report = json.loads(done.stdout)
    except ValueError:
        if not OUTAGE.search(done.stderr):
            print(f"vulnerabilities: NOT CHECKED, pip-audit failed: {reason}")
            return False
        report = None
    return report_packages(report, len(versions), reason)


def report_packages(report: dict[str, Any] | None, count: int, reason: str) -> bool:
    """Prints what pip-audit found, and which packages it could not check. Returns whether nothing was found."""
    if report is None:
        print(f"vulnerabilities: NOT CHECKED, {count} packages: the service did not answer ({reason})")
        return True
    packages = report["dependencies"]
    unchecked = [package for package in packages if "skip_reason" in package]
    found = [(package, problem) for package in packages for problem in package.get("vulns", ())]
    for package, problem in found:
        fixed = ", ".join(problem["fix_versions"]) or "no version"
        print(f"vulnerability: {package['name']} {package['version']}: {problem['id']}, fixed in {fixed}")
    if unchecked:
        names = ", ".join(package["name"] for package in unchecked[:5])
        print(
            f"vulnerabilities: NOT CHECKED, {len(unchecked)} of {count} packages: the service lacks them ({names}, …)"
        )
    if len(unchecked) < count:
        print(f"vulnerabilities: {len(found)} in {count - len(unchecked)} packages")
    return not found


def scan_secrets(root: Path = ROOT) -> bool:
    """Prints tracked lines that look like a secret and are not in the baseline. Returns whether there is none."""
    from detect_secrets import SecretsCollection
    from detect_secrets.core import baseline

    path = root / BASELINE
    known = baseline.load(baseline.load_from_file(str(path)), str(path))  # also sets the plug-ins and filters
    scanned = SecretsCollection()
    with contextlib.chdir(root):  # with `root`, the baseline would have the absolute paths of one machine
        scanned.scan_files(*list_scanned_files(root))  # one process per core
    found = sorted((scanned - known).json().items())
    for name, secrets in found:
        for secret in secrets:
            print(f"secret: {name}:{secret['line_number']}: {secret['type']}")
    if found:
        print(
            f"If it is none: end the line with `# pragma: allowlist secret`, or accept it in {BASELINE} with --accept."
        )
    print(f"secrets: {sum(len(secrets) for _, secrets in found)} new")
    return not found


def accept_secrets(root: Path = ROOT) -> None:
    """Writes the baseline with everything that looks like a secret now. It stores hashes, not the texts."""
    from detect_secrets import SecretsCollection
    from detect_secrets.core import baseline
    from detect_secrets.settings import default_settings

    with default_settings() as settings:
        settings.disable_filters("detect_secrets.filters.common.is_ignored_due_to_verification_policies")
        found = SecretsCollection()
        with contextlib.chdir(root):
            found.scan_files(*list_scanned_files(root))
        baseline.save_to_file(found, str(root / BASELINE))


def list_scanned_files(root: Path) -> list[str]:
    command = ["git", "-C", str(root), "ls-files", "-z"]
    names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    return [name for name in names if name and not NOT_SCANNED.match(name) and (root / name).is_file()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.audit", description=__doc__)
    parser.add_argument("--accept", action="store_true", help=f"write what looks like a secret to {BASELINE}")
    if parser.parse_args().accept:
        accept_secrets()
        return 0
    results = [scan_secrets(), audit_packages(list_server_packages())]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
