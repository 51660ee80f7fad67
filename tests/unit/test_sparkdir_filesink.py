"""Taking a file sink back: what is taken, what is refused, what a crash leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.blobs.files import FileBlobs
from holdfast.errors import CorruptError, StoreUnavailableError, UnsupportedFormatError
from holdfast.sparkdir.filesink import FileSink


class Sink:
    """A file sink's directory under construction: batch n adds ``part-n``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = FileBlobs(root)

    def batch(self, n: int, *, compact: bool = False) -> None:
        self.blobs.put(f"part-{n}", b"rows")
        self.blobs.put(f".part-{n}.crc", b"hadoop's")
        self.log(f"{n}.compact" if compact else str(n), range(n + 1) if compact else [n])

    def log(self, name: str, parts: range | list[int]) -> None:
        lines = [json.dumps({"path": f"file://{self.root}/part-{n}", "action": "add"}) for n in parts]
        self.blobs.put(f"_spark_metadata/{name}", "\n".join(["v1", *lines]).encode())
        self.blobs.put(f"_spark_metadata/.{name}.crc", b"hadoop's")

    def content(self) -> set[str]:
        keys = {info.key for info in self.blobs.list("") if not info.key.startswith("_holdfast")}
        hidden = {key for key in keys if key.endswith(".crc")}
        # Hadoop's hidden checksums come and go with their files.
        assert hidden <= {"/".join([*key.split("/")[:-1], f".{key.split('/')[-1]}.crc"]) for key in keys}
        return keys - hidden


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "out")


def test_a_sink_that_is_not_ahead_needs_no_rewind(sink: Sink) -> None:
    sink.batch(0)

    assert FileSink(sink.root).plan_rewind(0) is None
    assert FileSink(sink.root).plan_rewind(7) is None


def test_an_empty_directory_has_no_batch(tmp_path: Path) -> None:
    assert FileSink(tmp_path).latest_batch() is None


def test_a_rewind_takes_the_log_and_the_files_after_the_batch(sink: Sink) -> None:
    for n in range(5):
        sink.batch(n)
    plan = FileSink(sink.root).plan_rewind(1)
    assert plan is not None

    FileSink(sink.root).rewind(plan)

    assert sink.content() == {"part-0", "part-1", "_spark_metadata/0", "_spark_metadata/1"}


def test_files_that_a_compacted_entry_repeats_are_kept(sink: Sink) -> None:
    for n in range(6):
        sink.batch(n, compact=n == 4)

    plan = FileSink(sink.root).plan_rewind(2)

    assert plan is not None
    assert plan.log_entries == tuple(f"_spark_metadata/{n}" for n in ("3", "4.compact", "5"))
    assert sorted(plan.data_files) == ["part-3", "part-4", "part-5"]


def test_a_rewind_to_the_beginning_takes_everything(sink: Sink) -> None:
    for n in range(3):
        sink.batch(n)
    plan = FileSink(sink.root).plan_rewind(-1)
    assert plan is not None

    FileSink(sink.root).rewind(plan)

    assert sink.content() == set()


def test_a_batch_whose_entry_spark_has_deleted_is_refused_with_the_way_out(sink: Sink) -> None:
    for n in range(6):
        sink.batch(n, compact=n == 4)
    for n in range(3):
        sink.blobs.delete(f"_spark_metadata/{n}")

    with pytest.raises(UnsupportedFormatError, match="_spark_metadata/2") as caught:
        FileSink(sink.root).plan_rewind(2)

    assert "rebase" in (caught.value.hint or "")


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "s3://bucket/part-0", "file:///out/../../etc/passwd"])
def test_a_log_that_names_files_elsewhere_takes_nothing_away(sink: Sink, uri: str) -> None:
    sink.batch(0)
    sink.blobs.put("_spark_metadata/1", ("v1\n" + json.dumps({"path": uri})).encode())

    with pytest.raises(CorruptError, match="outside the sink"):
        FileSink(sink.root).plan_rewind(0)


def test_a_log_that_climbs_out_of_the_sink_takes_nothing_away(sink: Sink) -> None:
    sink.batch(0)
    uri = f"file://{sink.root}/../precious"
    sink.blobs.put("_spark_metadata/1", ("v1\n" + json.dumps({"path": uri})).encode())

    with pytest.raises(CorruptError, match="outside the sink"):
        FileSink(sink.root).plan_rewind(0)


def test_a_compacted_entry_stands_for_all_before_it(sink: Sink) -> None:
    for n in range(8):
        sink.batch(n, compact=n == 4)
    for n in range(4):
        sink.blobs.delete(f"_spark_metadata/{n}")

    plan = FileSink(sink.root).plan_rewind(6)

    assert plan is not None
    assert plan.data_files == ("part-7",)


@pytest.mark.parametrize("text", ["", "v1\nnot json", "v1\n[]", "v1\n{}"])
def test_a_log_that_is_none_is_corrupt(sink: Sink, text: str) -> None:
    sink.batch(0)
    sink.blobs.put("_spark_metadata/1", text.encode())

    with pytest.raises((CorruptError, UnsupportedFormatError)):
        FileSink(sink.root).plan_rewind(0)


@pytest.mark.parametrize("deletes", range(0, 14, 2))
def test_a_rewind_that_crashed_is_found_and_finished(
    sink: Sink, deletes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        sink.batch(n)
    plan = FileSink(sink.root).plan_rewind(1)
    assert plan is not None
    crashing = FileSink(sink.root)
    original, done = FileBlobs.delete, []

    def crash(blobs: FileBlobs, key: str) -> None:
        if len(done) == deletes:
            raise StoreUnavailableError("the machine is gone")
        done.append(key)
        original(blobs, key)

    with monkeypatch.context() as patch:
        patch.setattr(FileBlobs, "delete", crash)
        if deletes < 12:
            with pytest.raises(StoreUnavailableError):
                crashing.rewind(plan)
    again = FileSink(sink.root).plan_unfinished()
    entries = sorted(key for key in sink.content() if key.startswith("_spark_"))

    assert entries == [f"_spark_metadata/{n}" for n in range(len(entries))], "a log without holes"
    if deletes >= 12:
        FileSink(sink.root).rewind(plan)
        assert FileSink(sink.root).plan_unfinished() is None
        return
    assert again == plan
    FileSink(sink.root).rewind(again)
    assert sink.content() == {"part-0", "part-1", "_spark_metadata/0", "_spark_metadata/1"}
    assert FileSink(sink.root).plan_unfinished() is None
