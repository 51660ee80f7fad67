"""Spark's logs as values: every version of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.blobs.memory import MemoryBlobs
from holdfast.errors import CorruptError, InvalidInputError
from holdfast.sparkdir import IncompleteBatchError, SparkCheckpoint
from holdfast.sparkdir.reading import parse_commit, parse_offsets

HEAD = {
    "batchWatermarkMs": 23000,
    "batchTimestampMs": 1795126208759,
    "conf": {"spark.sql.shuffle.partitions": "2"},
}


def test_offsets_by_position_keep_their_order_and_their_gaps() -> None:
    data = f'v1\n{json.dumps(HEAD)}\n{{"logOffset":7}}\n-\n12'.encode()

    offsets = parse_offsets(data, "offsets/8")

    assert (offsets.version, offsets.batch_watermark_ms, offsets.batch_timestamp_ms) == (
        1,
        23000,
        1795126208759,
    )
    assert offsets.conf == {"spark.sql.shuffle.partitions": "2"}
    assert offsets.sources == ['{"logOffset":7}', None, "12"]
    assert offsets.source_directories() == ["0", "1", "2"]


def test_offsets_by_name_are_read_with_their_names() -> None:
    data = (
        f'v2\n{json.dumps({**HEAD, "sourceMetadataInfo": {}})}\norders:{{"a":{{"0":1}}}}\nclicks:-'.encode()
    )

    offsets = parse_offsets(data, "offsets/8")

    assert offsets.names == ["orders", "clicks"]
    assert offsets.sources == ['{"a":{"0":1}}', None]
    assert offsets.source_directories() == ["orders", "clicks"]


@pytest.mark.parametrize(
    ("text", "version", "ids"),
    [
        ('v1\n{"nextBatchWatermarkMs":5}', 1, None),
        ('v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"0":[["a"],["b"]]}}', 2, {"0": [["a"], ["b"]]}),
        ('v3\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{},"sinkMetadataMap":{}}', 3, {}),
    ],
)
def test_every_version_of_a_commit_is_read(text: str, version: int, ids: object) -> None:
    commit = parse_commit(text.encode(), "commits/1")

    assert (commit.version, commit.next_watermark_ms, commit.state_unique_ids) == (version, 5, ids)
    assert commit.raw == text.encode()


@pytest.mark.parametrize(
    "text",
    [
        'v2\n{"stateUniqueIds":7}',
        'v2\n{"stateUniqueIds":{"0":5}}',
        'v1\n{"nextBatchWatermarkMs":"soon"}',
        "v1\n5",
    ],
)
def test_a_commit_that_makes_no_sense_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptError, match="commits/1"):
        parse_commit(text.encode(), "commits/1")


def test_bytes_that_are_no_text_are_corrupt() -> None:
    with pytest.raises(CorruptError, match="UTF-8"):
        parse_commit(b"v1\n\xff\xfe", "commits/1")


def test_batches_committed_ones_and_the_watermark_are_told_apart() -> None:
    blobs = MemoryBlobs()
    for n in (8, 9, 10, 11):
        blobs.put(f"offsets/{n}", b"x")
    for n in (8, 9, 10):
        blobs.put(f"commits/{n}", b'v1\n{"nextBatchWatermarkMs":%d}' % n)
    blobs.put("offsets/.11.crc", b"hadoop's")
    blobs.put("commits/.12.7c1f.tmp", b"not yet")
    checkpoint = SparkCheckpoint(blobs)

    assert checkpoint.batches() == [8, 9, 10, 11]
    assert checkpoint.committed() == [8, 9, 10]
    assert checkpoint.latest_committed() == 10
    assert checkpoint.watermark(9) == 9
    with pytest.raises(IncompleteBatchError, match="batch 11"):
        checkpoint.commit(11)


def test_operators_come_with_their_stores_as_of_a_batch() -> None:
    def described(op: int, name: str, *stores: str) -> bytes:
        info = [{"storeName": s, "numColsPrefixKey": 0, "numPartitions": 3} for s in stores]
        return (
            b"v1\n"
            + json.dumps(
                {"operatorInfo": {"operatorId": op, "operatorName": name}, "stateStoreInfo": info}
            ).encode()
        )

    blobs = MemoryBlobs()
    blobs.put("state/0/_metadata/metadata", described(0, "symmetricHashJoin", "left", "right"))
    blobs.put("state/10/_metadata/v2/0", described(10, "old", "default"))
    blobs.put("state/10/_metadata/v2/12", described(10, "new", "default"))
    blobs.put("state/2/0/1.delta", b"of a Spark that wrote no descriptions")
    checkpoint = SparkCheckpoint(blobs)

    assert [(op.id, op.name, op.stores, op.partitions) for op in checkpoint.operators(5)] == [
        (0, "symmetricHashJoin", ("left", "right"), 3),
        (2, "", ("default",), None),
        (10, "old", ("default",), 3),
    ]
    assert checkpoint.operators()[2].name == "new"


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}"])
def test_a_directory_without_a_query_id_is_corrupt(text: str) -> None:
    blobs = MemoryBlobs()
    blobs.put("metadata", text.encode())

    with pytest.raises(CorruptError, match="query id"):
        SparkCheckpoint(blobs).query_id()


def test_a_place_with_nothing_in_it_has_no_batch(tmp_path: Path) -> None:
    for nothing in (tmp_path, tmp_path / "missing"):
        assert SparkCheckpoint(nothing).batches() == []
        assert SparkCheckpoint(f"file://{nothing}").latest_committed() is None


@pytest.mark.parametrize("url", ["file", "short", "path", "text"])
def test_a_linked_directory_that_leads_out_is_refused_however_it_is_given(tmp_path: Path, url: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "0").write_text('v1\n{"nextBatchWatermarkMs":5}')
    place = tmp_path / "checkpoint"
    place.mkdir()
    (place / "commits").symlink_to(tmp_path / "outside")
    location = {"file": f"file://{place}", "short": f"file:{place}", "path": place, "text": str(place)}[url]

    with pytest.raises(InvalidInputError, match="leads out"):
        SparkCheckpoint(location).commit(0)


def test_a_checkpoint_directory_that_is_a_link_itself_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real" / "commits").mkdir(parents=True)
    (tmp_path / "real" / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":5}')
    (tmp_path / "linked").symlink_to(tmp_path / "real")

    assert SparkCheckpoint(tmp_path / "linked").watermark(0) == 5
