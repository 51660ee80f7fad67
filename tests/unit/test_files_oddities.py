"""FileBlobs where a directory is not the store one hoped for: roots, limits, strangers, leftovers, sizes."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest

from holdfast.blobs import walking
from holdfast.blobs.base import TEMPORARY_PREFIX, BlobStore
from holdfast.blobs.files import FileBlobs
from holdfast.errors import ConflictError, InvalidInputError, KeyNotFoundError, StoreUnavailableError
from holdfast.testing.disk import watched_disk


def keys(blobs: BlobStore, prefix: str = "", after: str | None = None) -> list[str]:
    return [info.key for info in blobs.list(prefix, after)]


# -- the root


def test_a_root_that_is_missing_reads_as_an_empty_store_and_is_made_by_the_first_write(
    tmp_path: Path,
) -> None:
    blobs = FileBlobs(tmp_path / "not" / "yet")

    assert keys(blobs) == []
    assert blobs.head("key") is None
    with pytest.raises(KeyNotFoundError):
        blobs.get("key")
    blobs.delete("key")
    assert not (tmp_path / "not").exists(), "reading makes nothing"

    blobs.create("key", b"data")

    assert blobs.get("key") == b"data"


def test_a_root_that_vanished_is_an_unavailable_store_and_not_an_empty_one(tmp_path: Path) -> None:
    # The disk was unmounted. "Not found" would be taken for proof that checkpoints are gone.
    root = tmp_path / "mount"
    FileBlobs(root).create("dir/key", b"data")
    for touch in (lambda blobs: blobs.get("dir/key"), keys, lambda blobs: blobs.put("other", b"")):
        blobs = FileBlobs(root)
        touch(blobs)
        shutil.move(root, tmp_path / "away")

        for call in (
            lambda: blobs.get("dir/key"),  # noqa: B023
            lambda: blobs.get_range("dir/key", 0, 1),  # noqa: B023
            lambda: blobs.head("dir/key"),  # noqa: B023
            lambda: keys(blobs),  # noqa: B023
            lambda: blobs.delete("dir/key"),  # noqa: B023
            lambda: blobs.create("new", b""),  # noqa: B023
            lambda: blobs.put("new", b""),  # noqa: B023
        ):
            with pytest.raises(StoreUnavailableError, match="gone"):
                call()

        assert not root.exists(), "and nothing was written beside the disk"
        shutil.move(tmp_path / "away", root)


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_root_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    blobs = FileBlobs(f"{tmp_path}/file{below}")

    for call in (
        lambda: blobs.create("key", b""),
        lambda: blobs.put("key", b""),
        lambda: blobs.get("key"),
        lambda: keys(blobs),
        lambda: blobs.delete("key"),
    ):
        with pytest.raises((InvalidInputError, ConflictError), match="file"):
            call()


@pytest.mark.parametrize("root", ["", "a\0b", b"bytes", None, 3])
def test_a_root_that_is_no_path_is_refused(root: object) -> None:
    with pytest.raises((InvalidInputError, TypeError)):
        FileBlobs(root)  # type: ignore[arg-type]


def test_a_relative_root_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blobs = FileBlobs("store")
    monkeypatch.chdir("/")

    blobs.create("key", b"")

    assert (tmp_path / "store/key").exists()
    assert blobs.root == tmp_path / "store"


def test_a_store_travels_to_another_process_by_its_root(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.create("dir/key", b"data")

    copy = pickle.loads(pickle.dumps(blobs))

    assert copy.get("dir/key") == b"data"
    with watched_disk(tmp_path) as disk:
        copy.create("dir/other", b"")
    assert "." in [call.path for call in disk.changes() if call.name == "fsync"], (
        "it trusts no sync of another process"
    )


# -- names that get in each other's way


def test_a_key_below_another_key_is_a_conflict_that_names_both_ways_out(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.create("a", b"object")
    blobs.create("b/c", b"object")

    for write in (blobs.create, blobs.put):
        for key in ("a/below", "a/below/deeper", "b"):
            with pytest.raises(ConflictError, match=key):
                write(key, b"")

    assert keys(blobs) == ["a", "b/c"]
    assert blobs.get("a") == b"object"


def test_a_path_longer_than_the_system_allows_is_a_typed_error(tmp_path: Path) -> None:
    root = tmp_path
    while len(str(root)) < 3800:
        root /= "d" * 200
    blobs = FileBlobs(root)

    for call in (
        lambda: blobs.create("/".join(["k" * 200] * 4), b""),
        lambda: blobs.get("/".join(["k" * 200] * 4)),
        lambda: blobs.head("/".join(["k" * 200] * 4)),
    ):
        with pytest.raises(InvalidInputError, match="too long"):
            call()


def test_empty_directories_go_with_their_last_object_and_the_root_stays(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.create("a/b/c/key", b"")
    blobs.create("a/other", b"")

    blobs.delete("a/b/c/key")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "other"]
    blobs.delete("a/other")

    assert list(tmp_path.iterdir()) == []
    blobs.create("a/b/c/key", b"again")
    assert keys(blobs) == ["a/b/c/key"]


@pytest.mark.parametrize("opened", ["dir", "dir/" + TEMPORARY_PREFIX])
def test_a_write_survives_a_directory_that_vanishes_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    # A rival deletes the last object and takes the empty directory along, just before one of our calls.
    blobs = FileBlobs(tmp_path)
    blobs.create("dir/key", b"")
    real = os.open
    removed = []

    def vanishing(path: str, *args: int) -> int:
        if path.startswith(f"{tmp_path}/{opened}") and not removed:
            removed.append(path)
            (tmp_path / "dir/key").unlink()
            (tmp_path / "dir").rmdir()
        return real(path, *args)

    monkeypatch.setattr(os, "open", vanishing)
    blobs.create("dir/other", b"data")

    assert removed
    assert blobs.get("dir/other") == b"data"


def test_a_directory_that_vanishes_each_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path)
    monkeypatch.setattr(os, "mkdir", lambda path: None)

    with pytest.raises(StoreUnavailableError, match="'dir/key'"):
        blobs.create("dir/key", b"")


def test_with_too_many_open_files_nothing_ends_in_doubt(tmp_path: Path) -> None:
    # For real: each call is made with room for no, one, two... more open files.
    blobs = FileBlobs(tmp_path)
    blobs.create("dir/key", b"data")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    outcomes = []
    try:
        for room in range(4):
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + room, hard))
            try:
                blobs.create(f"dir/{room}", b"data")
                outcomes.append("created")
            except StoreUnavailableError as error:
                outcomes.append("refused" if "too many open files" in str(error) else str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert outcomes == ["refused", "refused", "created", "created"]
    assert keys(blobs) == ["dir/2", "dir/3", "dir/key"]


def test_a_file_size_limit_is_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    # For real, too: the second write of this one fails after the first has filled the file half.
    blobs = FileBlobs(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(StoreUnavailableError, match="larger than the system allows"):
            blobs.create("dir/key", bytes(200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)

    assert [path.name for path in tmp_path.rglob("*")] == ["dir"]


# -- strangers in the directory


def test_temporary_files_are_never_listed_and_never_in_the_way(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.create("dir/key", b"")
    (tmp_path / "dir" / f"{TEMPORARY_PREFIX}1-0123456789abcdef").write_bytes(b"half an obj")
    (tmp_path / f"{TEMPORARY_PREFIX}1-0123456789abcdef").write_bytes(b"")

    assert keys(blobs) == ["dir/key"]
    assert keys(blobs, "dir/.") == []


def test_only_old_leftovers_are_swept(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.create("a/b/key", b"data")
    day_old, fresh = (tmp_path / "a" / "b" / f"{TEMPORARY_PREFIX}{number}-00" for number in (1, 2))
    for path in (day_old, fresh):
        path.write_bytes(b"")
    yesterday = time.time() - 86_401
    os.utime(day_old, (yesterday, yesterday))
    os.utime(tmp_path / "a/b/key", (yesterday, yesterday))

    assert blobs.sweep_leftovers(min_age_seconds=86_400) == 1

    assert not day_old.exists()
    assert fresh.exists()
    assert blobs.sweep_leftovers(min_age_seconds=0) == 1
    assert keys(blobs) == ["a/b/key"]


def test_sweeping_a_store_that_is_not_there_finds_nothing(tmp_path: Path) -> None:
    assert FileBlobs(tmp_path / "missing").sweep_leftovers(min_age_seconds=0) == 0


def test_pipes_sockets_and_names_that_are_no_text_are_no_objects(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    blobs.create("key", b"")
    os.mkfifo(tmp_path / "pipe")
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))).write_bytes(b"")

    assert keys(blobs) == ["key"]
    assert blobs.head("pipe") is None
    with pytest.raises(KeyNotFoundError):
        blobs.get("pipe")


def test_linked_directories_are_followed_and_a_circle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "disk2").mkdir()
    store = tmp_path / "store"
    store.mkdir()
    (store / "data").symlink_to(tmp_path / "disk2")
    blobs = FileBlobs(store)
    blobs.create("data/key", b"")
    assert keys(blobs) == ["data/key"]

    (store / "data" / "loop").symlink_to(store)

    with pytest.raises(InvalidInputError, match="back to where it came from"):
        keys(blobs)


def test_an_object_gone_between_its_name_and_its_size_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path)
    for key in ("a", "b", "c"):
        blobs.create(key, b"")
    listing = blobs.list("")

    first = next(listing).key
    (tmp_path / "b").unlink()

    assert [first, *(info.key for info in listing)] == ["a", "c"]


# -- large directories


@pytest.fixture
def three_names_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "_NAMES_AT_ONCE", 3)


@pytest.mark.usefixtures("three_names_at_once")
@pytest.mark.parametrize("count", range(10))
def test_a_directory_larger_than_memory_is_read_in_pieces(tmp_path: Path, count: int) -> None:
    blobs = FileBlobs(tmp_path)
    # Directories between files whose names sort around the slash, where the order is easy to get wrong.
    names = [f"d/{number}{tail}" for number in range(3) for tail in ("-x", ".x", "/x", "0")]
    wanted = sorted(names)[:count]
    for key in reversed(wanted):
        blobs.create(key, b"")

    assert keys(blobs) == wanted
    for after in wanted:
        assert keys(blobs, "d/", after) == [key for key in wanted if key > after]


def test_only_directories_that_can_hold_wanted_keys_are_read(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    for number in range(10):
        blobs.create(f"ledger/{number}/record", b"")
        blobs.create(f"checkpoints/{number}/manifest", b"")

    with watched_disk(tmp_path) as disk:
        assert keys(blobs, "ledger/", "ledger/8") == ["ledger/8/record", "ledger/9/record"]

    assert [call.path for call in disk.calls if call.name == "scandir"] == ["ledger", "ledger/8", "ledger/9"]
