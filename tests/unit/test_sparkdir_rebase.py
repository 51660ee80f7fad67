"""Publishing a batch under a later number: names, lineages and logs. That Spark agrees is in tests/spark."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest

from holdfast.errors import InvalidInputError, UnsupportedFormatError
from holdfast.sparkdir import SparkCheckpoint, required_files
from holdfast.sparkdir.rebase import rebase
from holdfast.sparkdir.statefiles import StateVersion, frame_lz4, lz4_blocks, read_changelog_header
from holdfast.sparkdir.structure import check_structure

PROVIDER = "org.apache.spark.sql.execution.streaming.state."
RECORD = struct.pack(">i", 1) + b"k" + struct.pack(">i", 1) + b"v" + struct.pack(">i", -1)


def write(root: Path, path: str, data: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)


def directory(root: Path, provider: str, *, batch: int, ids: list[list[str]] | None = None) -> Path:
    conf = {
        "spark.sql.streaming.stateStore.providerClass": PROVIDER + provider,
        "spark.sql.shuffle.partitions": "1",
    }
    for n in (batch - 1, batch):
        head = {"batchWatermarkMs": 0, "batchTimestampMs": n, "conf": conf}
        write(root, f"offsets/{n}", f"v1\n{json.dumps(head)}\n-".encode())
    commit: dict[str, object] = {"nextBatchWatermarkMs": 5}
    if ids is not None:
        commit["stateUniqueIds"] = {"0": ids}
    write(root, f"commits/{batch}", f"v{1 if ids is None else 2}\n{json.dumps(commit)}".encode())
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}
    operator = {
        "operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"},
        "stateStoreInfo": [store],
    }
    write(root, "state/0/_metadata/metadata", b"v1\n" + json.dumps(operator).encode())
    write(root, "metadata", b'{"id":"0b0c"}')
    return root


def snapshot() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles":[{"dfsSstFileName":"1-u.sst"}]}')
    return buffer.getvalue()


def changelog(lineage: list[tuple[int, str]]) -> bytes:
    text = json.dumps([{"version": v, "checkpointUniqueId": u} for v, u in lineage]).encode()
    return frame_lz4(b"\x00\x02v3" + struct.pack(">H", len(text)) + text + RECORD)


def names(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}


def test_deltas_are_renumbered_over_an_empty_snapshot(tmp_path: Path) -> None:
    root = directory(tmp_path / "new", "HDFSBackedStateStoreProvider", batch=2)
    for v in (1, 2, 3):
        write(root, f"state/0/0/{v}.delta", frame_lz4(b"%d" % v + RECORD[1:]))
    deltas = [(root / f"state/0/0/{v}.delta").read_bytes() for v in (1, 2, 3)]

    rebase(root, batch=2, onto=10)

    assert {n for n in names(root) if "/0/0/" in n} == {
        f"state/0/0/{v}" for v in ("8.snapshot", "9.delta", "10.delta", "11.delta")
    }
    assert [(root / f"state/0/0/{v}.delta").read_bytes() for v in (9, 10, 11)] == deltas
    check_structure("state/0/0/8.snapshot", (root / "state/0/0/8.snapshot").read_bytes())
    assert {f.path for f in required_files(SparkCheckpoint(root), 10)} <= names(root)


def test_positions_and_watermark_stay_those_of_the_batch(tmp_path: Path) -> None:
    root = directory(tmp_path / "new", "HDFSBackedStateStoreProvider", batch=2)
    for v in (1, 2, 3):
        write(root, f"state/0/0/{v}.delta", frame_lz4(RECORD))
    before = {
        path: (root / path).read_bytes() for path in ("offsets/1", "offsets/2", "commits/2", "metadata")
    }

    rebase(root, batch=2, onto=10)

    assert {n for n in names(root) if n.startswith(("offsets", "commits"))} == {
        "offsets/9",
        "offsets/10",
        "commits/10",
    }
    after = {
        path: (root / path).read_bytes() for path in ("offsets/9", "offsets/10", "commits/10", "metadata")
    }
    assert list(after.values()) == list(before.values())


def test_lineages_move_with_the_names_and_ids_stay(tmp_path: Path) -> None:
    root = directory(tmp_path / "new", "RocksDBStateStoreProvider", batch=4, ids=[["e5"]])
    write(root, "state/0/0/3_c3.zip", snapshot())
    write(root, "state/0/0/3_c3.zip.crc", b"still true")
    write(root, "state/0/0/SSTs/1-u.sst", b"sst")
    write(root, "state/0/0/4_d4.changelog", changelog([(3, "c3")]))
    write(root, "state/0/0/4_d4.changelog.crc", b"not true any more")
    write(root, "state/0/0/5_e5.changelog", changelog([(3, "c3"), (4, "d4")]))
    write(root, "state/0/0/2_old.changelog", b"of a chain, not needed")

    rebase(root, batch=4, onto=30)

    assert {n for n in names(root) if "/0/0/" in n} == {
        f"state/0/0/{name}"
        for name in ("29_c3.zip", "29_c3.zip.crc", "30_d4.changelog", "31_e5.changelog", "SSTs/1-u.sst")
    }
    data = (root / "state/0/0/31_e5.changelog").read_bytes()
    header = read_changelog_header(data, "lz4", "k")
    assert header.lineage == (StateVersion(29, "c3"), StateVersion(30, "d4"))
    assert b"".join(lz4_blocks(data, "k")).endswith(RECORD)
    check_structure("state/0/0/31_e5.changelog", data)


@pytest.mark.parametrize("ids", [None, [["b2"]]])
def test_changelogs_from_the_beginning_on_are_refused_and_left_alone(
    tmp_path: Path, ids: list[list[str]] | None
) -> None:
    root = directory(tmp_path / "new", "RocksDBStateStoreProvider", batch=1, ids=ids)
    first, second = ("1.changelog", "2.changelog") if ids is None else ("1_a1.changelog", "2_b2.changelog")
    write(root, f"state/0/0/{first}", changelog([]) if ids else frame_lz4(RECORD))
    write(root, f"state/0/0/{second}", changelog([(1, "a1")]) if ids else frame_lz4(RECORD))
    before = names(root)

    with pytest.raises(UnsupportedFormatError, match="without a snapshot") as caught:
        rebase(root, batch=1, onto=9)

    assert "rewind" in (caught.value.hint or "")
    assert names(root) == before


@pytest.mark.parametrize("onto", [2, 1])
def test_a_batch_cannot_be_published_under_an_earlier_number(tmp_path: Path, onto: int) -> None:
    with pytest.raises(InvalidInputError, match="later number"):
        rebase(tmp_path, batch=2, onto=onto)


def test_frames_of_more_than_one_block_come_back(tmp_path: Path) -> None:
    plain = bytes(range(256)) * 700

    assert b"".join(lz4_blocks(frame_lz4(plain), "k")) == plain
