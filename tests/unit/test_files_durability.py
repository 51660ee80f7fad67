"""The order of FileBlobs' system calls. The numbers F1..F6 are those at the top of the module."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.blobs.base import TEMPORARY_PREFIX
from holdfast.blobs.files import FileBlobs
from holdfast.errors import HoldfastError, KeyExistsError, OutcomeUnknownError, StoreUnavailableError
from holdfast.testing.disk import DiskCall, watched_disk


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    """A store whose directory ``dir`` is there and known to be synced."""
    blobs = FileBlobs(tmp_path)
    blobs.create("dir/first", b"first")
    return blobs


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]


def steps(calls: list[DiskCall]) -> list[str]:
    """Calls as ``name path``, with the temporary name, which is different each time, as TEMP."""
    told = []
    for call in calls:
        parts = [call.name, *(part for part in (call.path, call.to) if part)]
        told.append(" ".join("TEMP" if TEMPORARY_PREFIX in part else part for part in parts))
    return told


def test_a_create_writes_syncs_links_and_syncs_the_directory_in_this_order(
    blobs: FileBlobs, tmp_path: Path
) -> None:
    with watched_disk(tmp_path) as disk:
        blobs.create("dir/key", b"data")

    assert steps(disk.changes()) == [
        "open dir",
        "open TEMP",
        "write TEMP",
        "fsync TEMP",
        "link TEMP dir/key",
        "unlink TEMP",
        "fsync dir",
    ]


def test_a_put_writes_syncs_renames_and_syncs_the_directory_in_this_order(
    blobs: FileBlobs, tmp_path: Path
) -> None:
    with watched_disk(tmp_path) as disk:
        blobs.put("dir/first", b"data")

    assert steps(disk.changes()) == [
        "open dir",
        "open TEMP",
        "write TEMP",
        "fsync TEMP",
        "rename TEMP dir/first",
        "fsync dir",
    ]


def test_every_directory_that_is_made_is_synced_into_its_parent(tmp_path: Path) -> None:
    with watched_disk(tmp_path) as disk:
        FileBlobs(tmp_path / "root").create("a/b/key", b"")

    assert [step for step in steps(disk.changes()) if "TEMP" not in step and "open" not in step] == [
        "mkdir root",
        "fsync .",
        "mkdir root/a",
        "fsync root",
        "mkdir root/a/b",
        "fsync root/a",
        "fsync root/a/b",
    ]


def test_a_directory_made_by_somebody_else_is_synced_before_it_is_relied_upon(
    blobs: FileBlobs, tmp_path: Path
) -> None:
    # The rival has made the directory and not synced it yet; after a crash our object would hang in the air.
    rival = tmp_path / "dir" / "new"
    rival.mkdir()
    with watched_disk(tmp_path) as disk:
        blobs.create("dir/new/key", b"")
        before = len(disk.changes())
        blobs.create("dir/new/other", b"")

    assert "fsync dir" in steps(disk.changes()[:before])
    assert "fsync dir" not in steps(disk.changes()[before:]), "once is enough"


def test_a_directory_that_was_removed_and_made_again_is_synced_again(
    blobs: FileBlobs, tmp_path: Path
) -> None:
    blobs.create("dir/new/key", b"")
    (tmp_path / "dir/new/key").unlink()
    keep_the_inode_busy = os.open(tmp_path / "dir/new", os.O_RDONLY)
    (tmp_path / "dir/new").rmdir()
    (tmp_path / "dir/new").mkdir()

    with watched_disk(tmp_path) as disk:
        blobs.create("dir/new/key", b"")
    os.close(keep_the_inode_busy)

    assert "fsync dir" in steps(disk.changes())


def test_a_delete_syncs_the_directory(blobs: FileBlobs, tmp_path: Path) -> None:
    with watched_disk(tmp_path) as disk:
        blobs.delete("dir/first")

    assert steps(disk.changes())[:3] == ["open dir", "unlink dir/first", "fsync dir"]


def test_a_delete_of_what_a_rival_just_removed_syncs_the_directory_too(
    blobs: FileBlobs, tmp_path: Path
) -> None:
    blobs.create("dir/second", b"")
    (tmp_path / "dir/first").unlink()

    with watched_disk(tmp_path) as disk:
        blobs.delete("dir/first")

    assert "fsync dir" in steps(disk.changes())


def test_who_is_told_that_a_key_exists_can_rely_on_it(blobs: FileBlobs, tmp_path: Path) -> None:
    # A rival has linked the key and not synced it: without a sync of ours it could vanish later.
    (tmp_path / "dir/key").write_bytes(b"rival")

    with watched_disk(tmp_path) as disk, pytest.raises(KeyExistsError):
        blobs.create("dir/key", b"ours")

    assert steps(disk.changes())[-1] == "fsync dir"
    assert leftovers(tmp_path) == []


def test_each_attempt_has_a_temporary_name_of_its_own(blobs: FileBlobs, tmp_path: Path) -> None:
    # Fixed temporary names made two writers write into one file.
    with watched_disk(tmp_path) as disk:
        for _ in range(20):
            blobs.put("dir/key", b"")

    opened = [call.path for call in disk.changes() if call.name == "open" and TEMPORARY_PREFIX in call.path]
    assert len(set(opened)) == 20


def test_short_writes_are_continued(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:3]))

    blobs.create("dir/key", [b"0123456", b"789"])

    assert blobs.get("dir/key") == b"0123456789"


def test_short_reads_are_continued(blobs: FileBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs.create("dir/key", b"0123456789")
    real_read, real_pread = os.read, os.pread
    monkeypatch.setattr(os, "read", lambda descriptor, size: real_read(descriptor, min(size, 3)))
    monkeypatch.setattr(
        os, "pread", lambda descriptor, size, start: real_pread(descriptor, min(size, 3), start)
    )

    assert blobs.get("dir/key") == b"0123456789"
    assert blobs.get_range("dir/key", 1, 8) == b"12345678"


# -- failing calls


@pytest.mark.parametrize("name", ["open", "write", "fsync", "link"])
@pytest.mark.parametrize(
    "error", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS, errno.EACCES, errno.EDQUOT]
)
def test_a_failure_before_the_key_has_its_name_is_a_plain_failure(
    blobs: FileBlobs, tmp_path: Path, name: str, error: int
) -> None:
    skip = 1 if name == "open" else 0  # the first one opens the directory; the next test has that
    with watched_disk(tmp_path) as disk:
        disk.fail(name, error, skip=skip)
        with pytest.raises(StoreUnavailableError, match="'dir/key'") as caught:
            blobs.create("dir/key", b"data")

    assert caught.value.hint
    assert blobs.head("dir/key") is None
    assert leftovers(tmp_path) == []
    blobs.create("dir/key", b"later")
    assert blobs.get("dir/key") == b"later"


@pytest.mark.parametrize("method", ["create", "put"])
@pytest.mark.parametrize("name", ["mkdir", "open", "fsync", "stat"])
def test_a_failure_while_directories_are_made_is_a_plain_failure(
    tmp_path: Path, name: str, method: str
) -> None:
    for skip in range(10):
        root = tmp_path / str(skip)
        blobs = FileBlobs(root)
        with watched_disk(tmp_path) as disk:
            disk.fail(name, errno.EIO, skip=skip)
            try:
                getattr(blobs, method)("a/b/key", b"data")
            except StoreUnavailableError:
                assert not (root / "a/b/key").exists()
                assert leftovers(root) == []
            except OutcomeUnknownError:
                assert (root / "a/b/key").exists()
        # Whatever was left half-made: the next one gets through, and syncs what the first one could not.
        blobs.put("a/b/key", b"later")
        assert blobs.get("a/b/key") == b"later"


def test_a_directory_whose_sync_failed_is_not_taken_for_synced_by_the_next_write(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    with watched_disk(tmp_path) as disk:
        disk.fail("fsync", errno.EIO)
        with pytest.raises(StoreUnavailableError):
            blobs.create("dir/key", b"")
        assert blobs.head("dir/key") is None

        blobs.create("dir/key", b"")

    synced = [call.path for call in disk.changes() if call.name == "fsync"]
    assert synced[0] == "."


@pytest.mark.parametrize(
    ("method", "name", "skip"),
    [("create", "unlink", 0), ("create", "fsync", 1), ("put", "fsync", 1)],
)
def test_a_failure_after_the_key_has_its_name_leaves_the_outcome_unknown(
    blobs: FileBlobs, tmp_path: Path, method: str, name: str, skip: int
) -> None:
    with watched_disk(tmp_path) as disk:
        disk.fail(name, errno.EIO, skip=skip)
        with pytest.raises(OutcomeUnknownError, match="'dir/key'") as caught:
            getattr(blobs, method)("dir/key", b"data")

    assert caught.value.hint
    assert blobs.get("dir/key") == b"data"


@pytest.mark.parametrize("method", ["create", "put"])
def test_a_failed_fsync_is_never_repeated_on_the_same_file(
    blobs: FileBlobs, tmp_path: Path, method: str
) -> None:
    # After a failed fsync the kernel may drop the pages and call the second fsync a success.
    for skip in (0, 1):
        with watched_disk(tmp_path) as disk:
            disk.fail("fsync", errno.EIO, skip=skip)
            with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
                getattr(blobs, method)(f"dir/{skip}", b"data")

        failed = next(call.inode for call in disk.calls if call.name == "fsync" and call.failed)
        assert [call.inode for call in disk.calls if call.name == "fsync"].count(failed) == 1


def test_a_link_whose_answer_was_lost_counts_as_done(blobs: FileBlobs, tmp_path: Path) -> None:
    # NFS repeats a request whose answer got lost, and then finds the name taken: by itself.
    for error in (errno.EEXIST, errno.EIO):
        with watched_disk(tmp_path) as disk:
            disk.fail("link", error, takes_effect=True)
            blobs.create(f"dir/{error}", b"ours")

        assert blobs.get(f"dir/{error}") == b"ours"
    assert leftovers(tmp_path) == []


def test_a_link_that_failed_and_can_not_be_looked_at_leaves_the_outcome_unknown(
    blobs: FileBlobs, tmp_path: Path
) -> None:
    with watched_disk(tmp_path) as disk:
        disk.fail("link", errno.EIO)
        disk.fail("stat", errno.EIO, skip=1, times=None)
        with pytest.raises(OutcomeUnknownError):
            blobs.create("dir/key", b"")


def test_without_hard_links_there_is_no_create_and_the_error_says_so(
    blobs: FileBlobs, tmp_path: Path
) -> None:
    with watched_disk(tmp_path) as disk:
        disk.fail("link", errno.EOPNOTSUPP)
        with pytest.raises(HoldfastError, match="no hard links"):
            blobs.create("dir/key", b"")

    assert blobs.head("dir/key") is None


def test_a_writer_whose_unfinished_file_was_swept_away_creates_nothing(
    blobs: FileBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def asleep(source: str, target: str) -> None:
        FileBlobs(tmp_path).sweep_leftovers(min_age_seconds=0)
        real(source, target)

    monkeypatch.setattr(os, "link", asleep)

    with pytest.raises(StoreUnavailableError, match="swept away"):
        blobs.create("dir/key", b"data")

    assert blobs.head("dir/key") is None


@pytest.mark.parametrize("method", ["create", "put"])
def test_an_interrupted_write_leaves_nothing_behind(
    blobs: FileBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(blobs, method)("dir/key", b"data")
    monkeypatch.undo()

    assert leftovers(tmp_path) == []
    assert blobs.head("dir/key") is None


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.EACCES, errno.EMFILE])
def test_a_delete_that_fails_says_so(blobs: FileBlobs, tmp_path: Path, error: int) -> None:
    # Swallowed delete errors made stores grow without end.
    for name in ("open", "unlink", "fsync"):
        with watched_disk(tmp_path) as disk:
            disk.fail(name, error)
            with pytest.raises(StoreUnavailableError, match="'dir/first'"):
                blobs.delete("dir/first")
        blobs.put("dir/first", b"first")


@pytest.mark.parametrize(
    ("method", "name"),
    [("get", "open"), ("get", "fstat"), ("get", "read"), ("get_range", "pread"), ("head", "stat")],
)
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_a_read_that_fails_is_never_mistaken_for_a_missing_key(
    blobs: FileBlobs, tmp_path: Path, method: str, name: str, error: int
) -> None:
    args = ("dir/first", 0, 3) if method == "get_range" else ("dir/first",)
    with watched_disk(tmp_path) as disk:
        disk.fail(name, error)
        with pytest.raises(StoreUnavailableError, match="'dir/first'"):
            getattr(blobs, method)(*args)


@pytest.mark.parametrize("name", ["stat", "scandir"])
def test_a_listing_that_fails_half_way_is_never_mistaken_for_its_end(
    blobs: FileBlobs, tmp_path: Path, name: str
) -> None:
    for skip in range(3):
        with watched_disk(tmp_path) as disk:
            disk.fail(name, errno.EIO, skip=skip)
            try:
                listed = [info.key for info in blobs.list("")]
            except StoreUnavailableError:
                continue
        assert listed == ["dir/first"]
        assert skip > 0, "at least the first one is needed"
