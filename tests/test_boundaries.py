"""Rules for the whole code: imports, the wheel, variables, names of trainers, commands."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

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
# Only Django imports from it.
NO_INTERFACE = {"rollouts/migrations"}
# Exceptions that all layers raise and catch.
ERRORS = ("rollouts.errors.", "rolloutdeck.errors.")
VARIABLE = re.compile(r"\b(?:(?:ROLLOUTDECK|AWS)_[A-Z0-9_]+|DATABASE_URL|REDIS_URL|FORWARDED_ALLOW_IPS)\b")


def list_sources() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def get_relative_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse_init(folder: Path) -> ast.Module:
    return ast.parse((folder / "__init__.py").read_text())


@cache
def read_public_names(package: str) -> frozenset[str]:
    """What `__all__` of a package lists; without it nothing is public."""
    for node in parse_init(ROOT.joinpath(*package.split("."))).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def find_deep_imports(path: Path) -> Iterator[str]:
    """Names that a file imports without using the public interface of the deepest folder that has them.

    Code in a folder and in the folders below it imports its modules directly.
    """
    own_module = get_relative_path(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names = [(module.rpartition(".")[0], module.rpartition(".")[2]) for module in modules]
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [(node.module, alias.name) for alias in node.names]
        for source, imported in names:
            if source.partition(".")[0] not in PACKAGES:
                continue
            target = ROOT.joinpath(*source.split("."))
            is_folder = target.is_dir()
            package = source if is_folder else source.rpartition(".")[0]
            is_public = is_folder and (imported in read_public_names(source) or (target / imported).is_dir())
            if not is_public and not f"{own_module}.".startswith(f"{package}."):
                yield f"{source}.{imported}"


def test_other_folders_import_only_from_the_public_interface() -> None:
    """`from rollouts.query import find_samples`, never `from rollouts.query.search import find_samples`."""
    wrong = [
        f"{get_relative_path(path)} imports {imported}"
        for path in list_sources()
        if path.name != "urls.py"  # it names the modules of views, as Django projects do
        and "migrations" not in path.parts
        for imported in find_deep_imports(path)
        if not imported.startswith(ERRORS)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("from rollouts.query.search import find_samples", ["rollouts.query.search.find_samples"]),
        ("from rollouts.query import search", ["rollouts.query.search"]),
        ("import rollouts.query.search", ["rollouts.query.search"]),
        ("from rollouts.formats.readers.jsonl import BOM", ["rollouts.formats.readers.jsonl.BOM"]),
        ("from rollouts.formats.readers import BOM", []),
        ("from rollouts.query import find_samples", []),
        ("from rolloutdeck.trainers import slime", []),
    ],
)
def test_a_deep_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, wrong: list[str]) -> None:
    (file := tmp_path / "views.py").write_text(f"def view():\n    {line}\n")
    monkeypatch.setattr(sys.modules[__name__], "get_relative_path", lambda path: "dashboard/pages/step/views.py")
    assert list(find_deep_imports(file)) == wrong


def list_packages() -> list[Path]:
    return [path.parent for package in PACKAGES for path in sorted((ROOT / package).rglob("__init__.py"))]


@pytest.mark.parametrize("folder", list_packages(), ids=get_relative_path)
def test_every_public_interface_says_what_the_folder_does_and_what_is_public(folder: Path) -> None:
    if get_relative_path(folder) in NO_INTERFACE:
        return
    tree = parse_init(folder)
    text = ast.get_docstring(tree) or ""
    assert "\nDepends on: " in text and "\nInvariant: " in text
    assert "__all__" in {ast.unparse(target) for node in tree.body for target in get_assigned_targets(node)}


def get_assigned_targets(node: ast.stmt) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def test_every_public_name_exists() -> None:
    missing = []
    for folder in list_packages():
        module = importlib.import_module(get_relative_path(folder).replace("/", "."))
        # The callback of TRL and the functions of other plug-ins need the trainer.
        public = frozenset() if "trainers" in folder.parts else read_public_names(module.__name__)
        missing += [f"{module.__name__}.{each}" for each in public if not has_public_name(module, each)]
    assert missing == []


def has_public_name(module: ModuleType, public: str) -> bool:
    return hasattr(module, public) or importlib.util.find_spec(f"{module.__name__}.{public}") is not None


def test_the_trainer_side_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, rolloutdeck\nfrom rolloutdeck import init\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "['__main__', 'rolloutdeck']", done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    into = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--quiet", "--wheel-dir", str(into)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=600)
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
    listed = set(re.findall(r"^([A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    read = {result for path in list_sources() for result in VARIABLE.findall(path.read_text())}
    env = (ROOT / "rolloutdeck/lib/environment.py").read_text()
    read |= {f"ROLLOUTDECK_{result}" for result in re.findall(r'"([A-Z_]+)"', env)}
    assert {result for result in read if not result.endswith("_")} == listed


def test_a_trainers_name_is_only_in_modules_that_may_name_it() -> None:
    pages = (ROOT / "templates").rglob("*.html")
    named = [path for path in (*list_sources(), *pages) if TRAINERS.search(path.read_text())]
    assert [get_relative_path(path) for path in named if not MAY_NAME.match(get_relative_path(path))] == []


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
    assert [get_relative_path(path) for path in list_sources() if unsafe.search(path.read_text())] == []


def test_all_tests_with_real_trainers_are_in_the_folder_that_make_collects() -> None:
    mark, folder = "mark." + "trainers", ROOT / "tests/trainers"
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if mark in path.read_text()]
    assert len(marked) > 10 and [path for path in marked if folder not in path.parents] == []
