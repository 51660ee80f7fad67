"""From URLs to stores; what is refused, what is not installed, and what an import costs."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import InvalidInputError, MissingExtraError, StoreUnavailableError
from holdfast.positions import MemorySourceCheckpointStore, open_positions
from holdfast.positions.sql import SQLSourceCheckpointStore


def test_a_bare_path_is_a_directory_with_a_sqlite_database(tmp_path: Path) -> None:
    for url in (str(tmp_path / "a" / "b"), tmp_path / "c"):
        with open_positions(url, "q") as store:
            assert isinstance(store, SQLSourceCheckpointStore)

    assert (tmp_path / "a" / "b" / "positions.db").is_file()
    assert (tmp_path / "c" / "positions.db").is_file()


def test_sqlite_urls_are_absolute_with_four_slashes_and_relative_with_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    open_positions(f"sqlite:///{tmp_path}/deep/absolute.db", "q").close()
    open_positions("sqlite:///relative.db", "q").close()

    assert (tmp_path / "deep" / "absolute.db").is_file()
    assert (tmp_path / "relative.db").is_file()


def test_memory_and_its_options() -> None:
    store = open_positions("memory://", "q", guard="ignore")

    assert isinstance(store, MemorySourceCheckpointStore)
    assert open_positions("memory://", "q") is not store


def test_rocksdb_has_a_directory_for_each_query(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")

    open_positions(f"rocksdb://{tmp_path}/base", "my query").close()

    assert (tmp_path / "base" / "my query" / "CURRENT").is_file()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://localhost/db",
        "postgres://localhost/db",
        "s3://bucket",
        "memory://name",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://host/path",
        "rocksdb://",
        "rocksdb://host/path",
        "rocksdb:///",
        "a\0b",
        7,
    ],
)
def test_what_is_no_place_for_positions_is_refused(url: Any) -> None:
    with pytest.raises(InvalidInputError):
        open_positions(url, "q")


@pytest.mark.parametrize("query_id", [".", "..", "a/b", "a\\b", "/", "", "a\0b"])
def test_a_query_id_that_is_no_directory_name_is_refused_for_rocksdb(tmp_path: Path, query_id: str) -> None:
    with pytest.raises(InvalidInputError):
        open_positions(f"rocksdb://{tmp_path}", query_id)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "valkey://127.0.0.1:1"])
@pytest.mark.parametrize("query_id", ["a{b", "a}b", "{}"])
def test_braces_in_a_query_id_are_refused_for_redis(url: str, query_id: str) -> None:
    pytest.importorskip("redis")

    with pytest.raises(InvalidInputError):
        open_positions(url, query_id)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("memory://", {"sync": True}),
        ("memory://", {"colour": 1}),
        ("DIR", {"colour": 1}),
        ("DIR", {"guard": "no"}),
    ],
)
def test_unknown_options_are_refused(tmp_path: Path, url: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        open_positions(url.replace("DIR", str(tmp_path)), "q", **options)


@pytest.mark.parametrize(
    ("url", "library"),
    [
        ("redis://127.0.0.1:1", "redis"),
        ("rediss://127.0.0.1:1", "redis"),
        ("valkey://127.0.0.1:1", "redis"),
        ("postgresql://u@127.0.0.1:1/db", "psycopg"),
    ],
)
def test_a_server_that_nobody_runs_is_unavailable(url: str, library: str) -> None:
    pytest.importorskip(library)

    with pytest.raises(StoreUnavailableError):
        open_positions(url, "q")


@pytest.mark.parametrize(
    ("url", "library", "extra"),
    [
        ("redis://127.0.0.1:1", "redis", "redis"),
        ("postgresql://u@127.0.0.1:1/db", "psycopg", "postgres"),
        ("rocksdb:///DIR", "rocksdict", "rocksdb"),
    ],
)
def test_a_missing_client_library_names_its_extra_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(MissingExtraError) as caught:
        open_positions(url.replace("/DIR", str(tmp_path)), "q")

    assert caught.value.extra == extra
    assert caught.value.hint == f"pip install 'holdfast[{extra}]'"


def test_importing_positions_loads_no_client_library() -> None:
    code = (
        "import sys; import holdfast.positions, holdfast.positions.aio, holdfast.positions.sql; "
        "import holdfast.positions.redis, holdfast.positions.rocksdb; "
        "clients = {'redis', 'psycopg', 'rocksdict', 'adbc_driver_manager', 'pyspark', 'pyarrow'}; "
        "print(sorted(set(sys.modules) & clients))"
    )

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "[]"


def test_a_password_is_in_no_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("redis")
    pytest.importorskip("psycopg")
    said = []

    with caplog.at_level(logging.DEBUG):
        for url in ("redis://:hunter2@127.0.0.1:1", "postgresql://u:hunter2@127.0.0.1:1/db"):
            with pytest.raises(StoreUnavailableError) as caught:
                open_positions(url, "q")
            said.append(str(caught.value) + repr(caught.value))

    assert "hunter2" not in "".join(said) + caplog.text
