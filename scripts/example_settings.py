"""Checks the example configurations of the trainers, and extracts the settings that decide the result.

    VERL=… TRL=… SLIME=… ROLL=… CURE=… python -m scripts.example_settings [FOLDER]

Each variable names a checkout (of verl-project/verl, huggingface/trl, THUDM/slime, alibaba/ROLL and Gen-Verse/CURE).
`rolloutdeck check` reads each shell script, YAML and Python file of the examples. From a shell script, which `check`
refuses, the settings are taken as they are written. FOLDER gets one JSON file for each checkout that is given:

    {"repository", "commit", "findings": [text],
     "examples": [{"paths": [path], "settings": {name: value}, "complete": bool, "findings": [number of a text]}]}

It has the settings that `check` reads, as they are written; files with the same settings share an entry. Files that are
no configuration of a run are left out. A Python expression is {"expression": source}.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.cli.entry import main as run_command
from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_api import SettingsIssue, load_trainer
from rolloutdeck.trainer_config import Expression, parse_overrides, read_config_file

FOLDER = Path(__file__).parents[1] / "tests/data/example_settings"
SUFFIXES = (".sh", ".yaml", ".yml", ".py")
_OVERRIDE = re.compile(r"(?:\+{1,2}|~)?[A-Za-z_]\w*(?:\.[\w@/-]+)+=")
_REFERENCE = re.compile(r"\$\{?\w+\}?")
_ARRAY_START = re.compile(r"\w+\+?=\(")


@dataclass(frozen=True)
class Checkout:
    """Where a trainer's examples are. sections: beginnings of names, of which one is enough to know what a file is."""

    repository: str
    folders: tuple[str, ...]
    sections: tuple[str, ...] = ()
    flags: bool = False  # the settings are flags of a script `train*.py`, not overrides

    def list_files(self, root: Path) -> list[Path]:
        files = (file for folder in self.folders for file in (root / folder).rglob("*") if file.suffix in SUFFIXES)
        return sorted(file for file in files if file.is_file() and ".git" not in file.parts)


CHECKOUTS = {
    "verl": Checkout(
        "verl-project/verl",
        ("examples", "recipe", "scripts", "tests/special_e2e", "tests/special_npu", "verl/trainer/config",
         "verl/experimental"),
        ("async_training.", "rollout.", "optim.", "engine.", "model.", "checkpoint."),
    ),
    "trl": Checkout("huggingface/trl", ("examples", "trl/scripts", "trl/accelerate_configs")),
    "slime": Checkout("THUDM/slime", ("examples", "scripts", "tests", "slime_plugins"), flags=True),
    "roll": Checkout(
        "alibaba/ROLL", ("examples",),
        ("sft_train.", "chosen_key", "student.", "train_env_manager.", "custom_envs.", "env_manager_cls",
         "validation.", "tracker_kwargs.", "actor_infer.", "actor_train.strategy_args.", "actor_train.training_args.",
         "actor_train.data_args.domain_interleave_probs."),
    ),
    "cure": Checkout("Gen-Verse/CURE", (".",)),
}  # fmt: skip
ALL_NAMES = ("actor_train.data_args.domain_interleave_probs.",)  # sections of which each name counts


@dataclass(frozen=True)
class Result:
    """What `check` says of a file. status: its exit status. findings: the first lines, such as "LOST  … is not set"."""

    status: int
    findings: tuple[str, ...] = ()
    error: str = ""


def check_file(name: str, path: Path) -> Result:
    """Returns what `rolloutdeck check --config` says. Raises what the command raises."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = run_command(["check", "--trainer", name, "--config", str(path)])
    lines = output.getvalue().splitlines()
    return Result(status, tuple(line for line in lines if line.startswith(("LOST", "NOTE"))), errors.getvalue())


def check_words(name: str, words: list[str]) -> Result:
    """Returns what `check` says of a file with these words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "flags")
        path.write_text("\n".join(map(shlex.quote, words)))
        return check_file(name, path)


def find_words(text: str, *, flags: bool) -> list[str]:
    """Returns the settings in a shell script as they are written: overrides, or the flags of `train*.py` and arrays."""
    words, array, in_array = [], list[str](), False
    for line in _join_lines(text):
        starts, ends = _ARRAY_START.match(line), line.endswith(")")
        in_array = in_array or bool(starts)
        tokens = _split_words(_ARRAY_START.sub("", line).removesuffix(")") if in_array else line)
        if not flags:
            words += [token for token in tokens if _OVERRIDE.match(token)]
        elif in_array:
            array += tokens
        else:
            script = next((at for at, token in enumerate(tokens) if re.search(r"\btrain\w*\.py$", token)), len(tokens))
            words += _drop_references(tokens[script + 1 :])
        if in_array and ends:
            words += array if array[:1] and array[0].startswith("--") else []
            array, in_array = [], False
    return words


def _drop_references(tokens: list[str]) -> list[str]:
    """Returns the words without the arrays that are expanded among the flags: their words are found where they are."""
    arrays = [token for token in tokens if token.endswith(("@]}", "*]}"))]
    words = [token for token in tokens if token not in arrays]
    return [word for at, word in enumerate(words) if not _REFERENCE.fullmatch(word) or _is_value(words[:at])]


def _is_value(words: list[str]) -> bool:
    """Returns whether the next word is the value of the last flag."""
    return bool(words) and words[-1].startswith("--") and "=" not in words[-1]


def _join_lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if (stripped := line.strip()) and not stripped.startswith("#"):
            yield stripped


def _split_words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote that ends in another line
        return []


class _Recorder(dict[str, Any]):
    """Settings that remember which of them are read."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)


def check_settings(name: str, settings: Mapping[str, Any], *, complete: bool) -> list[str]:
    """Returns the findings as the command prints them."""
    issues = load_trainer(name).check_settings(settings, complete=complete)
    return [format_finding(issue) for issue in sorted(issues, key=_rank)]


def _rank(issue: SettingsIssue) -> int:
    return 0 if issue.lost_data else 1 if issue.possible_loss else 2


def format_finding(issue: SettingsIssue) -> str:
    return f"{'LOST' if issue.lost_data else 'NOTE'}  {issue.title}."


def extract_settings(name: str, settings: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    """Returns the settings that `check` reads, and one of each section."""
    recorder = _Recorder(settings)
    load_trainer(name).check_settings(recorder, complete=complete)
    sections = CHECKOUTS[name].sections
    first = {section: next((each for each in settings if each.startswith(section)), "") for section in sections}
    groups = [each for each in settings if each.startswith((*ALL_NAMES, "${")) or "(" in each]
    chosen = recorder.read | set(first.values()) | set(groups)
    return {each: value for each, value in settings.items() if each in chosen}


def encode_value(value: Any) -> Any:
    """Returns the value for JSON."""
    if isinstance(value, Expression):
        return {"expression": str(value)}
    if isinstance(value, dict):  # the arguments of a call, which are settings as well
        return {}
    return value if isinstance(value, (str, int, float, bool, list, type(None))) else repr(value)


def decode_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that `encode_value` encoded."""
    return {
        name: Expression(value["expression"]) if value and isinstance(value, dict) else value
        for name, value in settings.items()
    }


def extract_example(name: str, path: Path) -> tuple[dict[str, Any], Result] | None:
    """Returns the settings of an example and what `check` says of it; None if it is no configuration of a run."""
    if path.suffix == ".sh":
        words = find_words(path.read_text(encoding="utf-8", errors="replace"), flags=CHECKOUTS[name].flags)
        if not words:
            return None
        settings, complete, result = parse_overrides(words), False, check_words(name, words)
    else:
        try:
            settings, complete = read_config_file(path)
        except UsageError:
            return None
        result = check_file(name, path)
    if result.status == 2:
        return None
    facts = extract_settings(name, settings, complete=complete)
    if check_settings(name, facts, complete=complete) != list(result.findings):
        raise ValueError(f"{path}: the extracted settings give other findings")
    return {"settings": {each: encode_value(value) for each, value in facts.items()}, "complete": complete}, result


def extract_checkout(name: str, root: Path) -> dict[str, Any]:
    commit = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    findings: dict[str, int] = {}
    examples: dict[str, dict[str, Any]] = {}
    for path in CHECKOUTS[name].list_files(root):
        if extracted := extract_example(name, path):
            facts, result = extracted
            numbers = [findings.setdefault(finding, len(findings)) for finding in result.findings]
            entry = {**facts, "findings": numbers}
            paths = examples.setdefault(json.dumps(entry, sort_keys=True), {"paths": [], **entry})["paths"]
            paths.append(path.relative_to(root).as_posix())
    return {
        "repository": CHECKOUTS[name].repository,
        "commit": commit.stdout.strip(),
        "findings": list(findings),
        "examples": list(examples.values()),
    }


def format_table(table: Mapping[str, Any]) -> str:
    """Returns JSON with a line for each finding and example."""
    findings = ",\n".join(f"  {json.dumps(finding)}" for finding in table["findings"])
    examples = ",\n".join(f"  {json.dumps(example)}" for example in table["examples"])
    head = f'"repository": {json.dumps(table["repository"])}, "commit": {json.dumps(table["commit"])}'
    return f'{{{head},\n"findings": [\n{findings}\n],\n"examples": [\n{examples}\n]}}\n'


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in CHECKOUTS:
        if root := os.environ.get(name.upper()):
            table = extract_checkout(name, Path(root))
            (folder / f"{name}.json").write_text(format_table(table))
            count = sum(len(example["paths"]) for example in table["examples"])
            print(f"{name}: {count} configurations, {len(table['findings'])} findings")


if __name__ == "__main__":
    main()
