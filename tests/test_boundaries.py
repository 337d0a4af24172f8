"""What must stay true of the whole: imports, the wheel, variables, trainers' names, the commands."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib

from rolloutdeck.cli.entry import COMMANDS
from rolloutdeck.trainer_api import registry

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("rolloutdeck", "rollouts", "workers", "dashboard")
# As a word or as a part of a name, like slime_dump and TrlTrainer; not within one, like ctrl. `roll` is also a verb.
NAMES = [trainer for trainer in registry.TRAINERS if trainer != "roll"]
TRAINERS = re.compile(
    rf"(?i:(?<![a-z])(?:{'|'.join(NAMES)})(?![a-z]))|(?:{'|'.join(map(str.capitalize, NAMES))})(?=[A-Z])"
)
# Formats, trainer modules and safe readers may name a trainer; so may the list of trainers.
MAY_NAME = re.compile(r"rollouts/formats/|rolloutdeck/(trainers/|safe_pickle/|trainer_api/registry.py)")
VARIABLE = re.compile(r"\b(?:ROLLOUTDECK_[A-Z_]+|DATABASE_URL|REDIS_URL)\b")


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def capability(module: str) -> str:
    """The folder whose entrance code of other folders imports; empty if the module is not in such a folder.

    A capability is a folder below a package; below `dashboard/pages`, `rolloutdeck/trainers` and
    `rolloutdeck/safe_pickle` each folder is one.
    """
    parts = module.split(".")
    depth = (
        3 if parts[:2] in (["dashboard", "pages"], ["rolloutdeck", "trainers"], ["rolloutdeck", "safe_pickle"]) else 2
    )
    folder = ROOT.joinpath(*parts[:depth])
    return ".".join(parts[:depth]) if len(parts) > depth and folder.is_dir() else ""


def test_other_folders_import_only_from_the_entrance() -> None:
    """`from rollouts.query import find_samples`, never `from rollouts.query.search import find_samples`."""
    wrong = []
    for path in sources():
        here = name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
                continue
            for alias in node.names:
                result = f"{node.module}.{alias.name}"
                is_module = ROOT.joinpath(*result.split(".")).with_suffix(".py").is_file()
                home = capability(result if is_module else f"{node.module}")
                # urls.py names the modules of views, as Django projects do.
                if home and not f"{here}.".startswith(f"{home}.") and not (path.name == "urls.py" and is_module):
                    wrong.append(f"{name(path)}:{node.lineno} imports {result}")
    assert wrong == []


def test_imports_follow_the_arrow() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_the_trainer_side_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, rolloutdeck\nfrom rolloutdeck import init\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['__main__', 'rolloutdeck']", done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    into = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--quiet", "--wheel-dir", str(into)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(into.glob("*.whl")))


@pytest.mark.slow
def test_the_wheel_puts_one_package_on_a_trainers_path(wheel: zipfile.ZipFile) -> None:
    assert {file.partition("/")[0] for file in wheel.namelist() if ".dist-info/" not in file} == {"rolloutdeck"}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["dashboard", "rollouts", "workers", "templates", "static"])
def test_the_wheel_holds_the_whole_server(wheel: zipfile.ZipFile, folder: str) -> None:
    tracked = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    packed = set(wheel.namelist())
    assert not [file for file in tracked.splitlines() if f"rolloutdeck/_server/{file}" not in packed]
    assert not [file for file in packed if file.endswith((".pyc", ".sqlite3"))]


def test_every_variable_is_in_the_example_and_every_one_there_is_read() -> None:
    listed = set(re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    read = {result for path in sources() for result in VARIABLE.findall(path.read_text())}
    env = (ROOT / "rolloutdeck/lib/environment.py").read_text()
    read |= {f"ROLLOUTDECK_{result}" for result in re.findall(r'"([A-Z_]+)"', env)}
    assert {result for result in read if not result.endswith("_")} == listed


def test_a_trainers_name_stands_only_where_its_files_are_read() -> None:
    pages = (ROOT / "templates").rglob("*.html")
    named = [path for path in (*sources(), *pages) if TRAINERS.search(path.read_text())]
    assert [name(path) for path in named if not MAY_NAME.match(name(path))] == []


@pytest.mark.parametrize("text", ["verl's", "slime_dump", "VERL_DIR", "class TrlTrainer", "from_cure(x)"])
def test_a_trainers_name_is_found_within_other_names(text: str) -> None:
    assert TRAINERS.search(text) and not TRAINERS.search("ctrl, overlay, secure, Security")


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [command for command in COMMANDS if f"rolloutdeck {command}" not in readme] == []


def test_every_dependency_has_its_reason_in_the_decisions() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs/decisions/dependencies.md").read_text()
    named = set(re.findall(r"[\w.-]+", " ".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))))
    names = {re.split(r"[\[~=<>]", package)[0] for packages in extras.values() for package in packages}
    assert names - named == set()


def test_no_pickle_is_loaded() -> None:
    unsafe = re.compile(r"\bpickle\.loads?\(|weights_only\s*=\s*False|\btorch\.load\(")
    assert [name(path) for path in sources() if unsafe.search(path.read_text())] == []
