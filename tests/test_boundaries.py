"""What must stay true of the whole: imports, the wheel, variables, trainers' names, the commands."""

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
# Django alone imports from it.
NO_ENTRANCE = {"rollouts/migrations"}
# Exceptions that all layers raise and catch.
ERRORS = ("rollouts.errors.", "rolloutdeck.errors.")
VARIABLE = re.compile(r"\b(?:(?:ROLLOUTDECK|AWS)_[A-Z0-9_]+|DATABASE_URL|REDIS_URL|FORWARDED_ALLOW_IPS)\b")


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def entrance(folder: Path) -> ast.Module:
    return ast.parse((folder / "__init__.py").read_text())


@cache
def public_names(package: str) -> frozenset[str]:
    """What `__all__` of a package lists; without it nothing is public."""
    for node in entrance(ROOT.joinpath(*package.split("."))).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def deep_imports(path: Path) -> Iterator[str]:
    """Names that a file imports past the entrance of the deepest folder that holds them.

    Code in a folder and in the folders below it imports its modules directly.
    """
    here = name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
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
            home = source if is_folder else source.rpartition(".")[0]
            is_public = is_folder and (imported in public_names(source) or (target / imported).is_dir())
            if not is_public and not f"{here}.".startswith(f"{home}."):
                yield f"{source}.{imported}"


def test_other_folders_import_only_from_the_entrance() -> None:
    """`from rollouts.query import find_samples`, never `from rollouts.query.search import find_samples`."""
    wrong = [
        f"{name(path)} imports {imported}"
        for path in sources()
        if path.name != "urls.py"  # it names the modules of views, as Django projects do
        and "migrations" not in path.parts
        for imported in deep_imports(path)
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
    monkeypatch.setattr(sys.modules[__name__], "name", lambda path: "dashboard/pages/step/views.py")
    assert list(deep_imports(file)) == wrong


def packages() -> list[Path]:
    return [path.parent for package in PACKAGES for path in sorted((ROOT / package).rglob("__init__.py"))]


@pytest.mark.parametrize("folder", packages(), ids=name)
def test_every_entrance_says_what_the_folder_does_and_what_is_public(folder: Path) -> None:
    if name(folder) in NO_ENTRANCE:
        return
    tree = entrance(folder)
    text = ast.get_docstring(tree) or ""
    assert "\nDepends on: " in text and "\nInvariant: " in text
    assert "__all__" in {ast.unparse(target) for node in tree.body for target in assigned(node)}


def assigned(node: ast.stmt) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def test_every_public_name_exists() -> None:
    missing = []
    for folder in packages():
        module = importlib.import_module(name(folder).replace("/", "."))
        # The callback of TRL and the functions of other plug-ins need the trainer.
        public = frozenset() if "trainers" in folder.parts else public_names(module.__name__)
        missing += [f"{module.__name__}.{each}" for each in public if not has(module, each)]
    assert missing == []


def has(module: ModuleType, public: str) -> bool:
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


def test_all_tests_with_real_trainers_are_in_the_folder_that_make_collects() -> None:
    mark, folder = "mark." + "trainers", ROOT / "tests/trainers"
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if mark in path.read_text()]
    assert len(marked) > 10 and [path for path in marked if folder not in path.parents] == []
