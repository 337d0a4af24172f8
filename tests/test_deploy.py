"""The files in `deploy/` start commands that exist, with variables that the server reads."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import tomllib
import yaml

from rolloutdeck.cli.entry import build_parser
from tests.support.nginx import wait_for_answer as wait_for_nginx
from tests.support.server import free_port

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PARTS = "web", "worker"
OTHER_VARIABLES = {"POSTGRES_USER", "POSTGRES_PASSWORD"}  # read by PostgreSQL's image


def load_documents(path: Path) -> list[Any]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def load_backup_pod() -> dict[str, Any]:
    jobs = [each for each in load_documents(DEPLOY / "kubernetes" / "backup.yaml") if each["kind"] == "CronJob"]
    pod: dict[str, Any] = jobs[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return pod


def list_commands() -> list[list[str]]:
    """The words after `rolloutdeck` of all containers and services."""
    services = load_documents(DEPLOY / "compose.yaml")[0]["services"]
    commands = [service["command"] for service in services.values() if service.get("image") == "rolloutdeck"]
    for name in PARTS:
        pod = load_documents(DEPLOY / "kubernetes" / f"{name}.yaml")[0]["spec"]["template"]["spec"]
        commands += [container["args"] for container in [*pod.get("initContainers", []), *pod["containers"]]]
    commands += [each["args"] for each in load_backup_pod()["containers"]]
    for unit in (DEPLOY / "systemd").glob("*.service"):
        lines = re.findall(r"^ExecStart(?:Pre)?=\S+/rolloutdeck (.*)$", unit.read_text(), re.MULTILINE)
        assert lines, unit
        commands += map(shlex.split, lines)
    return commands


def test_every_command_exists_with_its_options() -> None:
    commands = list_commands()
    assert {words[0] for words in commands} == {"up", "web", "worker", "migrate", "backup"}
    for words in commands:
        build_parser().parse_args(words)


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_a_service_can_write_its_data_and_large_bodies_of_requests(unit: Path) -> None:
    """Django writes bodies above 2.5 MB to /tmp, which ProtectSystem=strict makes read-only."""
    lines = unit.read_text().splitlines()
    assert "ProtectSystem=strict" in lines
    assert "PrivateTmp=true" in lines and "StateDirectory=rolloutdeck" in lines


@pytest.mark.parametrize("name", ["rolloutdeck.service", "rolloutdeck-web@.service", "rolloutdeck-worker.service"])
def test_a_service_is_started_until_the_database_answers(name: str) -> None:
    """After five failures within ten seconds systemd gives up."""
    assert {"Restart=always", "RestartSec=5"} <= set((DEPLOY / "systemd" / name).read_text().splitlines())


def test_the_nightly_backup_can_write_its_folder() -> None:
    """ProtectSystem=strict makes every other folder read-only."""
    unit = (DEPLOY / "systemd" / "rolloutdeck-backup.service").read_text()
    words = next(words for words in list_commands() if words[:1] == ["backup"] and "--data" in words)
    assert f"ReadWritePaths={words[1]}\n" in unit
    docs = (ROOT / "docs" / "operations.md").read_text()
    assert f"install --directory --owner rolloutdeck --group rolloutdeck --mode 700 {words[1]}\n" in docs
    assert (DEPLOY / "systemd" / "rolloutdeck-backup.timer").exists()


@pytest.mark.parametrize("name", ["rolloutdeck-web@.service", "rolloutdeck-worker.service"])
def test_each_start_of_a_part_brings_the_tables_to_its_version(name: str) -> None:
    """Also after an upgrade, and if the database did not answer at the boot: systemd does not start a service at all if
    a unit that it requires has failed once."""
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    assert "ExecStartPre=/opt/rolloutdeck/bin/rolloutdeck migrate" in lines and "TimeoutStartSec=infinity" in lines
    assert not any(line.startswith("Requires=") for line in lines)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_services(tmp_path: Path) -> None:
    units = []
    for unit in [*(DEPLOY / "systemd").glob("*.service"), *(DEPLOY / "systemd").glob("*.timer")]:
        text = unit.read_text().replace("/opt/rolloutdeck/bin/rolloutdeck", "/bin/true")
        units.append(tmp_path / unit.name.replace("@", "@1"))
        units[-1].write_text(re.sub("^User=.*\n", "", text, flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert done.returncode == 0 and str(tmp_path) not in done.stderr, done.stderr


def test_a_worker_of_kubernetes_waits_for_its_tables_too() -> None:
    pods = [load_documents(DEPLOY / "kubernetes" / f"{name}.yaml")[0]["spec"]["template"]["spec"] for name in PARTS]
    assert [[each["args"] for each in pod["initContainers"]] for pod in pods] == [[["migrate"]], [["migrate"]]]


def test_every_variable_is_known() -> None:
    known = set(re.findall(r"^([A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)) | OTHER_VARIABLES
    for path in (DEPLOY / "compose.yaml", DEPLOY / "systemd" / "rolloutdeck.env", *DEPLOY.glob("kubernetes/*.yaml")):
        used = re.findall(r"^\s*(?:- )?([A-Z]+_[A-Z_]+)\b[:=]", path.read_text(), re.MULTILINE)
        assert set(used) <= known, path


def test_backups_can_be_made_and_restored_in_the_containers() -> None:
    """pg_dump refuses a server that is newer than itself. A container keeps only what is in its volumes."""
    services = load_documents(DEPLOY / "compose.yaml")[0]["services"]
    client = re.search(r"postgresql-client-(\d+)", (DEPLOY / "Dockerfile").read_text())
    assert client and int(client[1]) >= int(services["postgres"]["image"].removeprefix("postgres:"))
    for name in ("migrate", "worker"):
        assert {"data:/data", "backup:/backup"} <= set(services[name]["volumes"])
    mounted = {mount["mountPath"] for mount in load_backup_pod()["containers"][0]["volumeMounts"]}
    assert mounted == {"/data", "/backup"}


def test_every_variable_reaches_the_containers_of_compose() -> None:
    """Compose also reads the variables of compose.yaml itself from the `.env` next to it."""
    services = load_documents(DEPLOY / "compose.yaml")[0]["services"]
    for name in ("migrate", *PARTS):
        assert services[name]["env_file"] == [{"path": ".env", "required": False}]
        assert services[name]["environment"]["ROLLOUTDECK_DATA"] == "/data"


def test_the_ingress_passes_urls_with_a_long_plan() -> None:
    ingress = next(each for each in load_documents(DEPLOY / "kubernetes" / "web.yaml") if each["kind"] == "Ingress")
    size = re.search(r"proxy_buffer_size (\w+);", (DEPLOY / "nginx.conf").read_text())
    assert size and ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-buffer-size"] == size[1]


def test_the_image_has_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    images = load_documents(DEPLOY / "kubernetes" / "kustomization.yaml")[0]["images"]
    assert [image["newTag"] for image in images] == [project["version"]]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_every_container_of_kubernetes_gets_the_bucket_and_its_credentials_from_a_secret() -> None:
    done = subprocess.run(["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    found = {(each["kind"], each["metadata"]["name"]): each.get("data", {}) for each in documents}
    pods = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment"]
    pods += [each["spec"]["jobTemplate"]["spec"]["template"]["spec"] for each in documents if each["kind"] == "CronJob"]
    containers = [each for pod in pods for each in [*pod.get("initContainers", []), *pod["containers"]]]
    assert {container["name"] for container in containers} == {"migrate", "web", "worker", "backup"}
    for container in containers:
        names = {kind: source["name"] for each in container["envFrom"] for kind, source in each.items()}
        secrets, plain = found["Secret", names["secretRef"]].keys(), found["ConfigMap", names["configMapRef"]].keys()
        assert secrets >= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "ROLLOUTDECK_SECRET_KEY"}
        assert plain >= {"ROLLOUTDECK_STORAGE", "AWS_REGION", "AWS_ENDPOINT_URL"} and not secrets & plain


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_nginx_reads_its_configuration(tmp_path: Path) -> None:
    command = ["nginx", "-t", "-e", "stderr", "-c", DEPLOY / "nginx.conf", "-p", tmp_path, "-g", f"pid {tmp_path}/pid;"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class EchoHeaders(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def run_nginx(folder: Path, text: str) -> Iterator[str]:
    """The proxy with this configuration in front of a server that answers with the headers it got. Yields its URL."""
    port = free_port()
    with ThreadingHTTPServer(("127.0.0.1", 0), EchoHeaders) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
        text = text.replace("http://web:8460", f"http://127.0.0.1:{server.server_port}")
        (folder / "nginx.conf").write_text(f"daemon off; pid {folder}/pid; error_log stderr;\n{text}")
        process = subprocess.Popen(["nginx", "-c", folder / "nginx.conf", "-p", folder, "-e", "stderr"])
        try:
            wait_for_nginx(f"http://127.0.0.1:{port}/")
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            process.wait(20)
            server.shutdown()


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
@pytest.mark.parametrize(
    ("has_outer_proxy", "address", "scheme"), [(False, "127.0.0.1", "http"), (True, "203.0.113.9", "https")]
)
def test_only_a_named_proxy_says_who_the_client_is(
    has_outer_proxy: bool, address: str, scheme: str, tmp_path: Path
) -> None:
    """The client sent X-Forwarded-For: 198.51.100.1 itself, and the outer proxy added the address that it saw."""
    text = (DEPLOY / "nginx.conf").read_text()
    if has_outer_proxy:
        text, count = re.subn(r"# (.*)172\.18\.0\.1(.*; # PROXY)", r"\g<1>127.0.0.1\g<2>", text)
        assert count == 2
    sent = {"X-Forwarded-For": "198.51.100.1, 203.0.113.9", "X-Forwarded-Proto": "https"}
    with run_nginx(tmp_path, text) as url, urlopen(Request(url, headers=sent), timeout=20) as answer:
        received = json.load(answer)
    assert (received["x-forwarded-for"], received["x-forwarded-proto"]) == (address, scheme)


def test_alerts_and_the_dashboard_use_metrics_that_exist() -> None:
    alerts = load_documents(DEPLOY / "prometheus" / "alerts.yml")[0]["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana" / "rolloutdeck.json").read_text())["panels"]
    expressions = [rule["expr"] for rule in alerts]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for expression in expressions for name in re.findall(r"rolloutdeck_\w+", expression)}
    sources = [ROOT / "rollouts/telemetry/instruments.py", ROOT / "dashboard/api/views/server_metrics.py"]
    texts = "".join(path.read_text() for path in sources)
    known = set(re.findall(r'"(?:rolloutdeck_)?([a-z_]+)"', texts))
    names = {re.sub(r"_(total|bucket|sum|count)$", "", name.removeprefix("rolloutdeck_")) for name in used}
    assert len(names) > 10 and names <= known


def test_the_configuration_of_prometheus_has_the_ports_of_containers() -> None:
    """A container of a worker has no web process that answers for it."""
    workers = [words for words in list_commands() if words[0] == "worker" and "--metrics-port" in words]
    ports = {build_parser().parse_args(words).metrics_port for words in workers}
    pods = [load_documents(DEPLOY / "kubernetes" / f"{name}.yaml")[0]["spec"]["template"]["spec"] for name in PARTS]
    named = {port["name"]: port["containerPort"] for pod in pods for port in pod["containers"][0]["ports"]}
    assert len(workers) == 2 and named == {"web": 8460, "metrics": ports.pop()} and not ports
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    assert all(f"regex: {name}," in text and f':{port}"' in text for name, port in named.items())
    assert load_documents(DEPLOY / "prometheus" / "prometheus.yml")[0]["scrape_configs"][0]["scheme"] == "https"


STATUSES = "RESTORE_STATUS", "BACKUP_STATUS"


@pytest.mark.parametrize(
    ("folders", "left", "statuses", "commands", "status"),
    [
        ([], [], (0, 0), ["up", "backup"], 0),
        (["20261101T000000Z.partial"], [], (2, 0), ["up", "backup"], 0),  # the first backup was killed
        (["20261101T000000Z"], [], (0, 0), ["restore", "up", "backup"], 0),
        (["20261101T000000Z"], [], (1, 1), ["restore", "up", "backup"], 0),  # one file of the backup is damaged
        (["20261101T000000Z"], [], (2, 0), ["restore"], 2),  # nothing was restored: the backups must stay as they are
        (["20261101T000000Z"], [], (0, 2), ["restore", "up", "backup"], 2),
        (["20261101T000000Z"], ["db.sqlite3"], (2, 0), ["up", "backup"], 0),  # requeued on its node
        (["20261101T000000Z"], ["restore-incomplete"], (0, 0), ["restore", "up", "backup"], 0),
    ],
)
def test_a_job_of_slurm_starts_with_the_data_that_the_last_job_has_kept(
    folders: list[str], left: list[str], statuses: tuple[int, int], commands: list[str], status: int, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    called = f'echo "$7" >> "{tmp_path}/called"\n'
    ends = 'case "$7" in restore) exit "$RESTORE_STATUS" ;; backup) exit "$BACKUP_STATUS" ;; esac\n'
    for name, lines in (("apptainer", called + ends), ("hostname", "echo node\n")):
        (programs / name).write_text(f"#!/bin/bash\n{lines}")
        (programs / name).chmod(0o755)
    for folder in folders:
        (tmp_path / "rolloutdeck-backups" / folder).mkdir(parents=True)
        (tmp_path / "rolloutdeck-backups" / folder / "manifest.json").write_text("{}")
    for name in left:
        (tmp_path / "rolloutdeck-1").mkdir(exist_ok=True)
        (tmp_path / "rolloutdeck-1" / name).touch()
    variables = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "SLURM_JOB_ID": "1"}
    variables |= dict(zip(STATUSES, map(str, statuses), strict=True))
    variables["PATH"] = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(["bash", str(DEPLOY / "slurm" / "server.sbatch")], env=variables, timeout=600)
    assert (tmp_path / "called").read_text().split() == commands
    assert done.returncode == status
    assert not (tmp_path / "rolloutdeck-server").exists()
