"""FileBlobs where "Key" and "key" are one name.

No such file system can be had on every machine, so here the calls of ``os`` are taught to fold: each part of
a path that is not there as it is spelled is looked for under other letters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.blobs.files import FileBlobs
from holdfast.blobs.folding import folds_case
from holdfast.errors import ConflictError

FOLDING = ("open", "stat", "lstat", "link", "rename", "unlink", "mkdir", "rmdir", "scandir", "listdir")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root whose file system folds."""
    real = {name: getattr(os, name) for name in FOLDING}

    def resolved(path: Any) -> Any:
        if not isinstance(path, str) or not path.lower().startswith(str(tmp_path).lower() + "/"):
            return path
        found = str(tmp_path)
        for name in path[len(found) + 1 :].split("/"):
            try:
                names = real["listdir"](found)
            except OSError:
                names = []
            matching = [each for each in names if each == name] or [
                each for each in names if each.lower() == name.lower()
            ]
            found = f"{found}/{matching[0] if matching else name}"
        return found

    def folded(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: real[name](*map(resolved, args), **kwargs)

    for name in FOLDING:
        monkeypatch.setattr(os, name, folded(name))
    root = tmp_path / "Store"
    root.mkdir()
    return root


def test_a_file_system_that_tells_letters_apart_is_known_as_such(tmp_path: Path) -> None:
    assert not folds_case(str(tmp_path))
    (tmp_path / "42").mkdir()
    assert not folds_case(str(tmp_path / "42"))


def test_one_that_does_not_is_known_too(root: Path) -> None:
    assert folds_case(str(root))


def test_a_key_that_differs_only_by_case_is_a_conflict_in_every_call_and_harms_nothing(root: Path) -> None:
    blobs = FileBlobs(root)
    blobs.create("Dir/Key", b"upper")

    for key in ("Dir/key", "dir/Key", "DIR/KEY", "dir/another"):
        for call in (
            lambda: blobs.get(key),  # noqa: B023
            lambda: blobs.get_range(key, 0, 1),  # noqa: B023
            lambda: blobs.head(key),  # noqa: B023
            lambda: blobs.create(key, b"lower"),  # noqa: B023
            lambda: blobs.put(key, b"lower"),  # noqa: B023
            lambda: blobs.delete(key),  # noqa: B023
        ):
            with pytest.raises(ConflictError, match="capital and small letters"):
                call()

    assert [info.key for info in blobs.list("")] == ["Dir/Key"]
    assert blobs.get("Dir/Key") == b"upper"


def test_keys_spelled_as_they_are_work_as_anywhere(root: Path) -> None:
    blobs = FileBlobs(root / "new")

    blobs.create("a/Key", b"1")
    blobs.put("a/Key", b"2")
    blobs.create("a/Other", b"3")

    assert [info.key for info in blobs.list("")] == ["a/Key", "a/Other"]
    blobs.delete("a/Key")
    assert blobs.head("a/Key") is None
    blobs.create("a/kEY", b"free again, under any spelling")
    assert [info.key for info in blobs.list("")] == ["a/Other", "a/kEY"]
