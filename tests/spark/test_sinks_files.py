"""The Files sink on a real disk with a real Spark: names, times, syncing, whole epochs, rewinding."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.coordinator.sink import Epoch, Outcome, SinkFlow, StagedOutputGoneError
from holdfast.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from holdfast.spark.session import ROCKSDB
from holdfast.spark.sinks import Files, ShownFile, read_index, shown_files
from holdfast.spark.sinks.epoch_index import EpochIndex
from holdfast.testing.sinks import FLOW, attempt, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

OTHER = SinkFlow("orders/per_hour", "lake")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def batch(spark: SparkSession) -> Callable[..., DataFrame]:
    def make(*numbers: int, partitions: int = 1) -> DataFrame:
        return spark.createDataFrame([(number,) for number in numbers], "number INT").repartition(partitions)

    return make


def opened(path: Path, flow: SinkFlow = FLOW, **settings: Any) -> Files:
    sink = Files(path, **settings)
    sink.open(flow)
    return sink


def prepared(sink: Files, epoch: Epoch, *parts: DataFrame) -> list[Any]:
    sink.begin(epoch)
    return stored([sink.prepare(part, epoch, number) for number, part in enumerate(parts)])


def committed(sink: Files, epoch: Epoch, *parts: DataFrame) -> list[Any]:
    receipts = prepared(sink, epoch, *parts)
    sink.commit(epoch, receipts)
    return receipts


def visible(path: Path) -> list[str]:
    """Files that a reader of the plain directory takes for output."""
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob("*")
        if file.is_file() and not str(file.relative_to(path)).startswith("_holdfast")
    )


def numbers(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row["number"] for row in spark.read.parquet(str(path)).collect())


def entries(path: Path) -> list[Path]:
    return sorted(path.glob("_holdfast/epochs/*/*/*.json"))


# --- names and contents ----------------------------------------------------------------------------


def test_what_is_visible_is_the_named_files_and_nothing_else(
    path: Path, batch: Callable[..., DataFrame]
) -> None:
    epoch = attempt(41)

    committed(opened(path), epoch, batch(*range(8), partitions=2), batch(9))

    end = str(epoch.id)[-8:]
    assert visible(path) == [
        f"part-000000000041-000-00000-{end}.parquet",
        f"part-000000000041-000-00001-{end}.parquet",
        f"part-000000000041-001-00000-{end}.parquet",
    ]
    assert sorted(os.listdir(path)) == sorted([*visible(path), "_holdfast"])


def test_a_committed_epoch_leaves_nothing_staged(path: Path, batch: Callable[..., DataFrame]) -> None:
    committed(opened(path), attempt(1), batch(1), batch(2))

    assert list(path.glob("_holdfast/staged/*/*")) == []


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "orc"])
def test_a_batch_without_rows_makes_no_file_but_an_entry(
    path: Path, batch: Callable[..., DataFrame], format: str
) -> None:
    options = {"header": "true"} if format == "csv" else {}

    committed(opened(path, format=format, options=options), attempt(1), batch().coalesce(1))

    assert visible(path) == []
    assert [shown.files for shown in read_index(path)] == [()]


def test_an_empty_first_partition_makes_no_file_either(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    lopsided = spark.createDataFrame(
        spark.sparkContext.parallelize([(0, 1), (1, 2)], 2).filter(lambda row: row[0] == 1),
        "part INT, number INT",
    )

    committed(opened(path), attempt(1), lopsided)

    assert [name.split("-")[3] for name in visible(path)] == ["00001"]
    assert numbers(spark, path) == [2]


def test_several_files_of_one_task_are_all_shown(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    sink = opened(path, options={"maxRecordsPerFile": "2"})

    committed(sink, attempt(1), batch(*range(5)))

    assert [name.rsplit("-", 1)[-1] for name in visible(path)][:2] == ["001.parquet", "002.parquet"]
    assert numbers(spark, path) == [0, 1, 2, 3, 4]


def test_partitions_keep_values_that_no_file_name_can_hold(path: Path, spark: SparkSession) -> None:
    values = ["plain", "a/b", "a=b", "..", "ü %20 {x} [y]*", "", "_hidden", "it's", None]
    rows = spark.createDataFrame(
        [(number, value) for number, value in enumerate(values)], "number INT, at STRING"
    )

    committed(opened(path, partition_by=["at"]), attempt(1), rows)

    read = spark.read.schema("number INT, at STRING").parquet(str(path)).collect()
    # Spark's own layout has one name for NULL and the empty text.
    assert sorted((row["number"], row["at"]) for row in read) == [
        (number, value or None) for number, value in enumerate(values)
    ]


@pytest.mark.parametrize("name", ["a b", "50%20", "ü", "it's", "x[1]{2}*?", "a:b", "#1", "back\\slash"])
def test_the_directory_may_have_any_name(
    tmp_path: Path, spark: SparkSession, batch: Callable[..., DataFrame], name: str
) -> None:
    path = tmp_path / name

    committed(opened(path), attempt(1), batch(1, 2))

    assert len(visible(path)) == 1
    assert [Path(file).parent for file in shown_files(path)] == [path]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("format", ["json", "csv"])
def test_times_in_text_are_utc_to_the_microsecond_wherever_the_session_is(
    path: Path, spark: SparkSession, zone: str, format: str
) -> None:
    rows = spark.sql(
        "SELECT timestamp_micros(1767225605123456) AS ts, TIMESTAMP_NTZ'2026-01-01 00:00:05.000001' AS n"
    )

    _in_zone(spark, zone, lambda: committed(opened(path, format=format), attempt(1), rows))

    text = (path / visible(path)[0]).read_text().strip()
    values = list(json.loads(text).values()) if format == "json" else text.split(",")
    assert values == ["2026-01-01T00:00:05.123456Z", "2026-01-01T00:00:05.000001"]
    back = spark.read.schema("ts TIMESTAMP, n TIMESTAMP_NTZ").format(format).load(str(path))
    assert back.selectExpr("unix_micros(ts) AS at").collect()[0]["at"] == 1767225605123456


def test_a_partition_by_time_is_named_in_utc(path: Path, spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1 AS number, timestamp_micros(1767225605000000) AS at")

    _in_zone(spark, "Asia/Tokyo", lambda: committed(opened(path, partition_by=["at"]), attempt(1), rows))

    assert Path(visible(path)[0]).parent.name == "at=2026-01-01 00%3A00%3A05"


def _in_zone(spark: SparkSession, zone: str, work: Callable[[], object]) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        work()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def test_a_sessions_dynamic_overwrite_changes_nothing(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        sink = opened(path, partition_by=["at"])
        for number in (1, 2):
            committed(sink, attempt(number), batch(number).selectExpr("number", "'same' AS at"))
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    assert numbers(spark, path) == [1, 2]


# --- durability ------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths of everything that was given to fsync."""
    paths: set[str] = set()
    fsync = os.fsync

    def record(descriptor: int) -> None:
        paths.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return paths


def test_prepare_syncs_every_file_and_every_directory_above_it(
    path: Path, batch: Callable[..., DataFrame], synced: set[str]
) -> None:
    rows = batch(*range(4), partitions=2).selectExpr("number", "number % 2 AS odd", "'x' AS at")
    sink, epoch = opened(path, partition_by=["at", "odd"]), attempt(1)
    sink.begin(epoch)
    before = set(synced)
    synced.clear()

    receipts = [sink.prepare(rows, epoch, 0)]

    files = [path / receipt["staged"] / file["name"] for receipt in receipts for file in receipt["files"]]
    above = {
        parent
        for file in files
        for parent in file.parents
        if parent == path.parent or path.parent in parent.parents
    }
    assert len(files) > 1
    assert {str(one) for one in files} <= synced
    # The attempt's own directory got a name after begin had synced it.
    ours = {one for one in above if str(epoch.id) in str(one)}
    assert len(ours) > 3
    assert {str(one) for one in ours} <= synced
    assert {str(one) for one in above - ours} <= before


def test_commit_syncs_every_directory_it_adds_a_name_to(
    path: Path, batch: Callable[..., DataFrame], synced: set[str]
) -> None:
    sink, epoch = opened(path, partition_by=["at"]), attempt(1)
    receipts = prepared(sink, epoch, batch(1).selectExpr("number", "'x' AS at"))
    synced.clear()

    sink.commit(epoch, receipts)

    assert {str(path), str(path / "at=x"), str(entries(path)[0].parent)} <= synced


# --- the index -------------------------------------------------------------------------------------


def test_the_index_names_whole_epochs_of_every_flow(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    sink, half = opened(path), attempt(3)
    committed(sink, attempt(1), batch(1))
    committed(opened(path, OTHER), attempt(1), batch(2))
    receipts = prepared(sink, half, batch(3), batch(4))
    one = receipts[0]["files"][0]["name"]
    os.link(path / receipts[0]["staged"] / one, path / one)

    whole = spark.read.parquet(*shown_files(path))

    assert sorted(row["number"] for row in whole.collect()) == [1, 2]
    assert numbers(spark, path) == [1, 2, 3]
    assert {(shown.flow.flow, shown.epoch.number) for shown in read_index(path)} == {
        ("orders/per_minute", 1),
        ("orders/per_hour", 1),
    }


def test_epochs_over_a_thousand_apart_are_found_in_order(path: Path, batch: Callable[..., DataFrame]) -> None:
    sink = opened(path)
    for number in (2, 999, 1000, 41_000):
        committed(sink, attempt(number), batch(number))

    assert [shown.epoch.number for shown in read_index(path)] == [2, 999, 1000, 41_000]
    newest = Files(path).open(FLOW)
    assert newest is not None
    assert newest.number == 41_000


def test_a_flipped_bit_in_an_entry_is_found(path: Path, batch: Callable[..., DataFrame]) -> None:
    committed(opened(path), attempt(1), batch(1))
    entry = entries(path)[0]
    data = bytearray(entry.read_bytes())
    data[data.index(b"size_bytes") + 14] ^= 1
    entry.write_bytes(data)

    with pytest.raises(CorruptError):
        Files(path).open(FLOW)


def test_an_entry_of_a_newer_version_asks_for_an_upgrade(path: Path, batch: Callable[..., DataFrame]) -> None:
    from holdfast.manifest.codec import canonical, pretty, sha256_hex

    committed(opened(path), attempt(1), batch(1))
    entry = entries(path)[0]
    document = {**json.loads(entry.read_bytes()), "version": 2}
    del document["digest"]
    entry.write_bytes(pretty({**document, "digest": sha256_hex(canonical(document))}))

    with pytest.raises(UnsupportedFormatError):
        Files(path).open(FLOW)


# --- conflicts -------------------------------------------------------------------------------------


def test_an_epoch_shown_by_another_checkpoint_is_a_conflict_before_anything_is_staged(
    path: Path, batch: Callable[..., DataFrame]
) -> None:
    committed(opened(path), attempt(5), batch(1))
    sink = opened(path)

    with pytest.raises(ConflictError, match="already shows epoch 5"):
        sink.begin(attempt(5))

    assert list(path.glob("_holdfast/staged/*/*")) == []


def test_the_commit_of_a_second_checkpoint_of_one_epoch_is_a_conflict(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    one, other = attempt(1), attempt(1)
    sink = opened(path)
    receipts = prepared(sink, other, batch(2))
    committed(opened(path), one, batch(1))

    with pytest.raises(ConflictError, match=str(one.id)):
        sink.commit(other, receipts)
    with pytest.raises(ConflictError, match=str(one.id)):
        sink.outcome(other, receipts)

    assert numbers(spark, path) == [1]


def test_a_visible_file_with_other_bytes_is_never_replaced(
    path: Path, batch: Callable[..., DataFrame]
) -> None:
    sink, epoch = opened(path), attempt(1)
    receipts = prepared(sink, epoch, batch(1))
    stranger = path / receipts[0]["files"][0]["name"]
    stranger.write_bytes(b"somebody else's")

    with pytest.raises(ConflictError, match="other bytes"):
        sink.commit(epoch, receipts)

    assert stranger.read_bytes() == b"somebody else's"
    stranger.unlink()
    sink.commit(epoch, receipts)
    assert len(visible(path)) == 1


def test_a_shown_epoch_cannot_be_aborted(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    sink, epoch = opened(path), attempt(1)
    receipts = committed(sink, epoch, batch(1))

    with pytest.raises(ConflictError, match="too late"):
        sink.abort(epoch, receipts)

    assert numbers(spark, path) == [1]


# --- staged output that is damaged or half moved ----------------------------------------------------


def test_damaged_staged_output_is_not_shown_and_is_fed_again(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    epoch = attempt(1, generation=1)
    receipts = prepared(opened(path), epoch, batch(*range(6), partitions=3))
    last = path / receipts[0]["staged"] / receipts[0]["files"][-1]["name"]
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    sink = opened(path)

    with pytest.raises(StagedOutputGoneError, match="damaged"):
        sink.commit(epoch, receipts)

    # Not half of it either: what is fed now may have its rows in other files.
    assert visible(path) == []
    committed(sink, Epoch(1, epoch.id, 2), batch(*range(6), partitions=2))
    assert numbers(spark, path) == [0, 1, 2, 3, 4, 5]


def test_half_a_commit_whose_rest_is_gone_is_taken_back(path: Path, batch: Callable[..., DataFrame]) -> None:
    epoch = attempt(1)
    receipts = prepared(opened(path), epoch, batch(*range(4), partitions=2))
    first, second = (file["name"] for file in receipts[0]["files"])
    os.link(path / receipts[0]["staged"] / first, path / first)
    (path / receipts[0]["staged"] / second).unlink()

    with pytest.raises(StagedOutputGoneError, match=second):
        opened(path).commit(epoch, receipts)

    assert visible(path) == []


def test_a_commit_finishes_when_only_its_index_entry_is_missing(
    path: Path, batch: Callable[..., DataFrame]
) -> None:
    sink, epoch = opened(path), attempt(1)
    receipts = committed(sink, epoch, batch(1))
    entries(path)[0].unlink()

    before = sink.outcome(epoch, receipts)
    sink.commit(epoch, receipts)

    assert before is Outcome.NOT_COMMITTED
    assert sink.outcome(epoch, receipts) is Outcome.COMMITTED


# --- rewinding -------------------------------------------------------------------------------------


@pytest.fixture
def five(path: Path, batch: Callable[..., DataFrame]) -> Files:
    """A sink that shows epochs 1 to 5, beside another flow's epoch 3."""
    sink = opened(path)
    for number in range(1, 6):
        committed(sink, attempt(number), batch(number))
    committed(opened(path, OTHER), attempt(3), batch(300))
    return sink


def test_a_rewind_takes_back_its_range_and_nothing_else(five: Files, path: Path, spark: SparkSession) -> None:
    five.rewind(3, 4)

    assert numbers(spark, path) == [1, 2, 5, 300]
    assert sorted(row["number"] for row in spark.read.parquet(*shown_files(path)).collect()) == [1, 2, 5, 300]


def test_after_a_rewind_to_the_end_the_newest_epoch_is_an_older_one(five: Files, path: Path) -> None:
    five.rewind(4, 5)

    newest = Files(path).open(FLOW)

    assert newest is not None
    assert newest.number == 3


def test_a_rewind_may_be_repeated(five: Files, path: Path, spark: SparkSession) -> None:
    five.rewind(3, 5)
    five.rewind(3, 5)

    assert numbers(spark, path) == [1, 2, 300]


def test_an_entry_that_a_late_commit_left_after_the_rewind_counts_for_nothing(
    five: Files, path: Path
) -> None:
    late = entries(path)[-1]
    assert late.name == "000000000005.json"
    content = late.read_bytes()

    five.rewind(4, 5)
    late.write_bytes(content)

    newest = Files(path).open(FLOW)
    assert newest is not None
    assert newest.number == 3
    assert {shown.epoch.number for shown in read_index(path) if shown.flow == FLOW} == {1, 2, 3}
    assert five.outcome(attempt(5), []) is Outcome.NOT_COMMITTED


def test_a_late_commit_of_a_rewound_epoch_finds_nothing_to_do(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    sink, epoch = opened(path), attempt(2)
    committed(sink, attempt(1), batch(1))
    receipts = prepared(sink, epoch, batch(2))

    opened(path).rewind(2, 2)
    sink.commit(epoch, receipts)

    assert numbers(spark, path) == [1]
    assert sink.outcome(epoch, receipts) is Outcome.NOT_COMMITTED


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_overtaken_by_a_rewind_in_its_middle_shows_nothing(
    path: Path,
    spark: SparkSession,
    batch: Callable[..., DataFrame],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    sink, epoch = opened(path), attempt(2)
    committed(sink, attempt(1), batch(1))
    receipts = prepared(sink, epoch, batch(2), batch(3))
    link, lock, linked = os.link, threading.Lock(), []

    def overtaken(source: str, target: str) -> None:
        if "part-" not in os.path.basename(target):
            link(source, target)
            return
        with lock:
            linked.append(target)
            if when == "after":
                link(source, target)
            if len(linked) == 1:
                opened(path).rewind(2, 2)
            if when == "before":
                link(source, target)

    monkeypatch.setattr(os, "link", overtaken)
    sink.commit(epoch, receipts)

    assert linked
    assert numbers(spark, path) == [1]
    assert sorted(shown_files(path)) == sorted(str(path / name) for name in visible(path))


def test_a_commit_that_wakes_in_the_middle_of_a_rewind_finds_nothing_left_to_show(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie, epoch = opened(path), attempt(2)
    committed(zombie, attempt(1), batch(1))
    receipts = prepared(zombie, epoch, batch(2), batch(3))
    asleep = [(str(path / one["staged"]), ShownFile(**one["files"][0])) for one in receipts]
    unlink = os.unlink

    def woken(name: str) -> None:
        # What the rewind removes is removed; then the zombie shows what it was about to show.
        try:
            unlink(name)
        finally:
            while asleep and os.path.basename(name).startswith("part-"):
                zombie._show(epoch, asleep.pop())

    monkeypatch.setattr(os, "unlink", woken)
    opened(path).rewind(2, 2)

    assert asleep == []
    assert numbers(spark, path) == [1]


def test_a_rewind_takes_half_a_commit_too(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    sink = opened(path)
    committed(sink, attempt(1), batch(1))
    receipts = prepared(sink, attempt(2), batch(2), batch(3))
    name = receipts[1]["files"][0]["name"]
    os.link(path / receipts[1]["staged"] / name, path / name)

    opened(path).rewind(2, 2)

    assert numbers(spark, path) == [1]
    assert list(path.glob("_holdfast/staged/*/*")) == []


# --- inside a stateful query -------------------------------------------------------------------------


def test_prepare_alone_drives_the_state_of_a_query_once(
    tmp_path: Path, path: Path, spark: SparkSession
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.json").write_text('{"number": 1}\n{"number": 2}\n{"number": 1}\n')
    state = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    }
    for name, value in state.items():
        spark.conf.set(name, value)
    sink = opened(path)
    counts = (
        spark.readStream.schema("number INT")
        .option("maxFilesPerTrigger", 1)
        .json(str(tmp_path / "in"))
        .groupBy("number")
        .count()
    )

    def one_epoch(rows: DataFrame, batch: int) -> None:
        committed(sink, attempt(batch + 1), rows)

    try:
        query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(one_epoch)
            .option("checkpointLocation", str(tmp_path / "scratch"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    finally:
        for name in state:
            spark.conf.unset(name)

    # A second computation of a partition would leave a second file of the same version.
    for partition in ("0", "1"):
        logs = sorted(file.name for file in (tmp_path / "scratch/state/0" / partition).glob("*.changelog"))
        assert [name.split("_")[0] for name in logs] == ["1", "2"]
    rows = spark.read.parquet(str(path)).collect()
    assert sorted((row["number"], row["count"]) for row in rows) == [(1, 2), (1, 4), (2, 1), (2, 2)]


# --- two processes, refusals ------------------------------------------------------------------------

COMMITTER = """
import json, sys
from holdfast.coordinator.sink import Epoch, SinkFlow
from holdfast.ids import CheckpointId
from holdfast.spark.sinks.files import Files

told = json.loads(sys.stdin.read())
sink = Files(told["path"])
sink.open(SinkFlow("orders/per_minute", "lake"))
print("ready", flush=True)
sink.commit(Epoch(told["number"], CheckpointId.parse(told["id"]), 1), told["receipts"])
assert "pyspark" not in sys.modules
"""


def test_two_processes_commit_one_epoch_at_once(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    epoch = attempt(1)
    receipts = prepared(opened(path), epoch, batch(*range(40), partitions=20))
    told = json.dumps({"path": str(path), "number": 1, "id": str(epoch.id), "receipts": receipts})

    processes = [
        subprocess.Popen([sys.executable, "-c", COMMITTER], stdin=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(told)
        process.stdin.close()

    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert numbers(spark, path) == list(range(40))
    assert opened(path).outcome(epoch, receipts) is Outcome.COMMITTED


@pytest.mark.parametrize("url", ["s3://bucket/x", "s3a://bucket/x", "gs://b/x", "hdfs:///x", "abfss://c@a/x"])
def test_object_storage_is_refused_for_now(url: str) -> None:
    with pytest.raises(InvalidInputError, match="not supported yet"):
        Files(url)


def test_a_file_url_is_a_path(path: Path) -> None:
    assert Files(f"file://{path}").path == str(path)
    assert Files(f"file:{path}").path == str(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "avro"},
        {"format": "delta"},
        {"partition_by": "day"},
        {"options": {"Path": "/elsewhere"}},
    ],
)
def test_a_wrong_declaration_is_refused(path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Files(path, **wrong)


def test_a_file_in_place_of_the_directory_is_refused(path: Path) -> None:
    path.write_text("a file")

    with pytest.raises(InvalidInputError, match="not a directory"):
        Files(path).open(FLOW)


def test_a_full_disk_is_try_later_and_names_the_place(
    path: Path, batch: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    sink, epoch = opened(path), attempt(1)
    receipts = prepared(sink, epoch, batch(1))

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(StoreUnavailableError, match="no space is left"):
        sink.commit(epoch, receipts)
    monkeypatch.undo()
    sink.commit(epoch, receipts)

    assert len(visible(path)) == 1


def test_rows_go_out_as_they_are_without_columns_of_ours(
    path: Path, spark: SparkSession, batch: Callable[..., DataFrame]
) -> None:
    committed(opened(path), attempt(1), batch(1))

    assert spark.read.parquet(str(path)).columns == ["number"]


def test_a_feed_that_died_while_it_was_shown_gives_way_to_the_next(
    spark: SparkSession, path: Path, batch: Callable[..., DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The staged files of a decided epoch were lost; the run that made them again was killed between showing
    # its files, which had other bytes, and the index entry. No later start got past them.
    decided = attempt(1)
    lost = prepared(opened(path), decided, batch(1, 2))
    shutil.rmtree(path / "_holdfast" / "staged")
    feeding = opened(path)
    fed = prepared(feeding, replace(decided, generation=2), batch(2, 1))
    with monkeypatch.context() as dying:
        dying.setattr(EpochIndex, "create", lambda self, shown: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            feeding.commit(replace(decided, generation=2), fed)
    assert len(visible(path)) == 1

    with pytest.raises(StagedOutputGoneError, match="did not end"):
        opened(path).commit(decided, lost)
    assert visible(path) == []
    committed(opened(path), replace(decided, generation=3), batch(1, 2))

    assert sorted(numbers(spark, path)) == [1, 2]
