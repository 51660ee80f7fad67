"""RocksDB's odd corners: bytes, families and keys of others, one opener at a time, full disks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CorruptError, InvalidInputError, StoreUnavailableError, UnsupportedFormatError
from holdfast.positions import Marker, SourceCheckpoint, SourceCheckpointStore, open_positions
from holdfast.positions.rocksdb import RocksDBSourceCheckpointStore
from holdfast.testing.positions import committed

rocksdict = pytest.importorskip("rocksdict")


@contextmanager
def bare(path: Path, *families: str) -> Iterator[Any]:
    """The column family ``stream_state`` through a client that knows nothing of ours."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    path.mkdir(parents=True, exist_ok=True)
    there = rocksdict.Rdict.list_cf(str(path), options) if (path / "CURRENT").exists() else []
    names = ({"stream_state", *families, *there}) - {"default"}
    database = rocksdict.Rdict(
        str(path), options, column_families={name: rocksdict.Options(raw_mode=True) for name in names}
    )
    family = database.get_column_family("stream_state")
    try:
        yield family if not families else (family, database)
    finally:
        family.close()
        database.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q"


def opened(path: Path) -> SourceCheckpointStore:
    return open_positions(f"rocksdb://{path.parent}", path.name)


def test_what_we_write_a_bare_client_reads(path: Path) -> None:
    with opened(path) as store:
        committed(store, ("s", 2**64 - 1, b"\0p"), ("none", 1), ("empty", 258, b""))
        store.write_config_hash(1)
        store.write_result_sequence("q", 2)
        store.write_marker(Marker.RESETTING)

    with bare(path) as family:
        assert dict(family.items()) == {
            b"config_hash": b"\0\0\0\0\0\0\0\1",
            b"marker:resetting": b"",
            b"result_sequence:q": b"\0\0\0\0\0\0\0\2",
            b"source_position:empty": b"",
            b"source_position:s": b"\0p",
            b"source_sequence:empty": b"\0\0\0\0\0\0\1\2",
            b"source_sequence:none": b"\0\0\0\0\0\0\0\1",
            b"source_sequence:s": b"\xff" * 8,
        }

    with opened(path) as store:
        store.clear_checkpoints()
    with bare(path) as family:
        assert dict(family.items()) == {b"generation": b"\0\0\0\0\0\0\0\1", b"marker:resetting": b""}


def test_what_a_bare_client_wrote_we_read_and_what_is_not_ours_stays(path: Path) -> None:
    with bare(path, "elements", "outbox") as (family, database):
        family[b"source_sequence:s:1"] = b"\0\0\0\0\0\0\1\2"
        family[b"source_position:s:1"] = b"\0\xff"
        family[b"source_sequence:t"] = b"\0\0\0\0\0\0\0\1"
        family[b"source_position:stray"] = b"nobody's"
        family[b"config_hash"] = b"\x80\0\0\0\0\0\0\0"
        family[b"result_sequence:other"] = b"\0\0\0\0\0\0\0\x09"
        family[b"schema_version"] = b"\0\0\0\0\0\0\0\1"
        family[b"marker:bootstrapped"] = b""
        for unknown in (b"marker:unheard", b"a", b"source_zzz", b"source_q", b"resume"):
            family[unknown] = b"kept"
        elements = database.get_column_family("elements")
        elements[b"source_sequence:s:1"] = b"theirs"
        elements.close()

    with opened(path) as store:
        assert store.read_all_checkpoints() == {
            "s:1": SourceCheckpoint(258, b"\0\xff"),
            "t": SourceCheckpoint(1, None),
        }
        assert store.read_checkpoint("stray") is None
        assert store.read_config_hash() == 2**63
        assert store.read_result_sequence("other") == 9
        assert store.read_markers() == {Marker.BOOTSTRAPPED}
        store.clear_checkpoints()

    with bare(path, "elements") as (family, database):
        assert dict(family.items()) == {
            b"generation": b"\0\0\0\0\0\0\0\1",
            b"schema_version": b"\0\0\0\0\0\0\0\1",
            **dict.fromkeys((b"marker:unheard", b"a", b"source_zzz", b"source_q", b"resume"), b"kept"),
        }
        elements = database.get_column_family("elements")
        assert elements[b"source_sequence:s:1"] == b"theirs"
        elements.close()


def test_a_stray_position_never_becomes_somebodys(path: Path) -> None:
    with bare(path) as family:
        family[b"source_position:s"] = b"stray"

    with opened(path) as store:
        committed(store, ("s", 1))

        assert store.read_checkpoint("s") == SourceCheckpoint(1, None)
        assert store.read_all_checkpoints() == {"s": SourceCheckpoint(1, None)}


def test_a_newer_schema_is_refused(path: Path) -> None:
    with bare(path) as family:
        family[b"schema_version"] = b"\0\0\0\0\0\0\0\2"

    with pytest.raises(UnsupportedFormatError):
        opened(path)
    with bare(path) as family:  # and let go of
        family[b"schema_version"] = b"\0\0\0\0\0\0\0\1"
    opened(path).close()


@pytest.mark.parametrize("bad", [b"", b"\0" * 7, b"\0" * 9])
def test_a_number_that_is_not_8_bytes_is_corrupt(path: Path, bad: bytes) -> None:
    with bare(path) as family:
        for key in (b"source_sequence:s", b"config_hash", b"generation", b"result_sequence:q"):
            family[key] = bad
        family[b"source_sequence:t"] = b"\0\0\0\0\0\0\0\1"
        family[b"marker:resetting"] = b"x"

    with opened(path) as store:
        for read in (
            lambda: store.read_checkpoint("s"),
            store.read_all_checkpoints,
            store.read_config_hash,
            store.read_generation,
            store.read_markers,
            lambda: store.read_result_sequence("q"),
        ):
            with pytest.raises(CorruptError):
                read()
        assert store.read_checkpoint("t") == SourceCheckpoint(1, None)


def test_a_directory_that_is_open_here_is_unavailable(path: Path) -> None:
    with opened(path) as store:
        with pytest.raises(StoreUnavailableError):
            opened(path)
        committed(store, ("s", 1))

    opened(path).close()


def test_a_directory_that_is_open_in_another_process_is_unavailable(path: Path) -> None:
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys; from holdfast.positions import open_positions; "
            "store = open_positions('rocksdb://' + sys.argv[1], 'q'); "
            "print('held', flush=True); sys.stdin.read()",
            str(path.parent),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"

    with pytest.raises(StoreUnavailableError):
        opened(path)

    holder.kill()
    holder.communicate()
    opened(path).close()


def test_a_damaged_database_is_corrupt(path: Path) -> None:
    with opened(path) as store:
        committed(store, ("s", 1))
    (path / "CURRENT").write_bytes(b"nonsense\n")

    with pytest.raises((CorruptError, StoreUnavailableError)):
        opened(path)


def test_parents_are_made_and_a_file_in_the_way_is_unavailable(tmp_path: Path) -> None:
    RocksDBSourceCheckpointStore(tmp_path / "a" / "b" / "c").close()
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailableError):
        RocksDBSourceCheckpointStore(tmp_path / "file")


def test_reads_after_close_say_closed(path: Path) -> None:
    store = opened(path)
    store.close()

    with pytest.raises(InvalidInputError, match="closed"):
        store.read_markers()


FULL_DISK = """
import resource, signal, sys
from holdfast.errors import HoldfastError
from holdfast.positions import open_positions
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_positions("rocksdb://" + sys.argv[1], "q")
with store.session() as session:
    store.stage_checkpoint("s", 1, b"one")
    session.commit()
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
error, number = None, 1
while error is None and number < 60:
    number += 1
    try:
        with store.session() as session:
            for name in "stuv":
                store.stage_checkpoint(name, number, bytes(60_000))
            session.commit()
    except HoldfastError as caught:
        error = caught
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
seen = store.read_all_checkpoints()
assert len(seen) == 1 or len({each.sequence for each in seen.values()}) == 1, seen
print(type(error).__name__, seen["s"].sequence, number)
with store.session() as session:
    store.stage_checkpoint("s", 1000, b"after")
    session.commit()
store.close()
store = open_positions("rocksdb://" + sys.argv[1], "q")
assert store.read_checkpoint("s").source_position == b"after"
store.close()
"""


def test_a_full_disk_is_said_and_the_store_is_usable_afterwards(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert told.returncode == 0, told.stderr
    kind, stands_at, failed_at = told.stdout.split()
    assert kind in ("StoreUnavailableError", "OutcomeUnknownError")
    if kind == "StoreUnavailableError":
        assert int(stands_at) < int(failed_at), "an error that claims failure, for a commit that was done"
