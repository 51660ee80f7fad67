"""The repository keeps its own promises: what make offers, what is pinned, which way imports point."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PINS = ROOT / "constraints.txt"


def tracked_text() -> dict[str, str]:
    """Every committed file that is text, by its path in the checkout."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = {}
    for name in names.splitlines():
        path = ROOT / name
        if path.is_file() and b"\0" not in (data := path.read_bytes()):
            found[name] = data.decode("utf-8")
    return found


def run(*command: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


# --- make


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert declared is not None

    listed = re.findall(r"^  ([a-z]+) +\S", run("make").stdout, re.MULTILINE)

    assert set(listed) == set(declared[1].split()) - {"help"}


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^  ([a-z]+) ", run("make").stdout, re.MULTILINE))
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]

    named = {
        (path.name, target)
        for path in documents
        for target in re.findall(r"(?:`|^\s*)make ([a-z]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert named
    assert {target for _, target in named} <= targets, named


@pytest.fixture
def bare_checkout(tmp_path: Path) -> Path:
    """A checkout with a venv whose Python runs, and in which every installation fails."""
    for name in ("pyproject.toml", "constraints.txt", "tools/setup.py", ".venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if name != ".venv/bin/python":
            shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\nexit 3\n')
    python.chmod(0o755)
    return tmp_path


def stamp_of(checkout: Path) -> str:
    code = "import setup; print(setup.fingerprint(), end='')"
    return run(sys.executable, "-c", code, PYTHONPATH=str(checkout / "tools")).stdout


def test_setting_up_again_does_nothing_and_says_nothing(bare_checkout: Path) -> None:
    (bare_checkout / ".venv" / "holdfast-setup").write_text(stamp_of(bare_checkout))

    again = run(sys.executable, bare_checkout / "tools" / "setup.py")

    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_changed_pins_are_installed_and_a_failure_says_what_to_try(bare_checkout: Path) -> None:
    (bare_checkout / ".venv" / "holdfast-setup").write_text(stamp_of(bare_checkout))
    with (bare_checkout / "constraints.txt").open("a") as pins:
        pins.write("another==1.0\n")

    failed = run(sys.executable, bare_checkout / "tools" / "setup.py")

    assert failed.returncode == 1
    assert "hint: can pip reach a package index?" in failed.stderr
    assert not (bare_checkout / ".venv" / "holdfast-setup").exists(), "half a set-up must not look whole"


def test_a_python_that_is_too_old_is_refused_with_the_way_out(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)

    named = run(ROOT / "tools" / "find-python", PYTHON=str(old))
    looked_for = run("/bin/bash", ROOT / "tools" / "find-python", PATH=str(tmp_path), PYTHON="")

    assert named.returncode == 1
    assert str(old) in named.stderr
    assert looked_for.returncode == 1
    assert "make setup PYTHON=" in looked_for.stderr


# --- pins


def test_the_pins_hold_names_and_versions_and_nothing_else() -> None:
    lines = [line for line in PINS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]

    odd = [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [\w .'<>=!()]+)?", line)]

    assert lines
    assert odd == []
    assert not any(line.startswith("holdfast") for line in lines)


def test_every_declared_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = [
        *project["project"]["dependencies"],
        *(one for extra in project["project"]["optional-dependencies"].values() for one in extra),
        *(one for group in project["dependency-groups"].values() for one in group),
    ]
    names = {re.split(r"[^A-Za-z0-9_.-]", one)[0].lower() for one in declared} - {"holdfast"}

    pinned = {line.split("==")[0] for line in PINS.read_text(encoding="utf-8").splitlines() if "==" in line}

    assert names <= pinned


# --- what is committed


def test_no_committed_file_names_a_registry_host_or_somebodys_machine() -> None:
    # Put together from halves, or this file would be the first to be found.
    forbidden = [
        "pypi" + ".org",
        "python" + "hosted",
        "repo1." + "maven",
        "npmjs" + ".org",
        "/wo" + "rk/",
        "/ro" + "ot/",
    ]

    found = [(name, word) for name, text in tracked_text().items() for word in forbidden if word in text]

    assert found == []


def test_every_relative_link_in_a_document_leads_somewhere() -> None:
    broken = [
        (name, link)
        for name, text in tracked_text().items()
        if name.endswith(".md")
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        if not (ROOT / name).parent.joinpath(link).exists()
    ]

    assert broken == []


def test_decisions_are_numbered_one_after_the_other() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("*.md"))

    assert numbers == list(range(1, len(numbers) + 1))


# --- which way imports point


WRONG = [
    ("Imports point down", "holdfast/errors.py", "import holdfast.manifest"),
    ("Imports point down", "holdfast/nowhere.py", ""),
    ("Imports point down", "holdfast/cli/of_tests.py", "import holdfast.testing.fakes"),
    ("Only holdfast.spark knows Spark", "holdfast/errors.py", "import pyspark.sql"),
    ("Only manifests and the ledger's records know msgspec", "holdfast/errors.py", "import msgspec"),
    ("Each storage SDK lives in its own backend's file", "holdfast/blobs/elsewhere.py", "import obstore"),
]


def test_every_folder_of_the_product_is_a_package_that_the_linter_can_see() -> None:
    folders = {path.parent for path in (ROOT / "src").rglob("*.py")}

    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(("contract", "module", "line"), WRONG, ids=[module for _, module, _ in WRONG])
def test_the_import_linter_refuses_a_wrong_arrow(
    tmp_path: Path, contract: str, module: str, line: str
) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (("testing/fakes.py", ""), (module.removeprefix("holdfast/"), f"{line}\n")):
        changed = tmp_path / "src" / "holdfast" / name
        changed.parent.mkdir(exist_ok=True)
        (changed.parent / "__init__.py").touch()
        with changed.open("a", encoding="utf-8") as file:
            file.write(text)

    told = subprocess.run(
        [
            *(Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"),
            *("--config", ROOT / "pyproject.toml"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 1
    assert re.search(rf"^{re.escape(contract)} BROKEN", told.stdout, re.MULTILINE), told.stdout


# --- a skip is not a pass


@pytest.mark.parametrize(("required", "expected"), [("", 0), ("1", 1)])
@pytest.mark.parametrize(
    "body",
    [
        "import pytest\n\ndef test_it() -> None:\n    pytest.skip('no server')\n",
        "import pytest\n\npytest.importorskip('not_there_at_all')\n\ndef test_it() -> None: ...\n",
    ],
    ids=["one test", "a whole module"],
)
def test_a_skip_is_a_failure_where_everything_is_required(
    tmp_path: Path, required: str, expected: int, body: str
) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_other.py").write_text("def test_other() -> None: ...\n")
    (tmp_path / "test_it.py").write_text(body)

    told = run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path),
        HOLDFAST_REQUIRE_ALL=required,
    )

    assert (told.returncode != 0) == bool(expected), told.stdout
    if expected:
        assert "allows no skips" in told.stdout
