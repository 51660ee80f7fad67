"""Manifests written once and never again: whoever can't read these any more has changed the format."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.ids import CheckpointId
from holdfast.manifest import CheckpointManifestV2, PartitionSnapshotEntry, SinkCommitStatus
from holdfast.manifest.v2 import find_restyled, read_sealed

GOLDEN = Path(__file__).parent / "golden"
#: Of manifest-v2-full.json, written down when it was made.
FULL_SEAL = "795b9584b32393896c5a2e936e0aae031f16e4c43069065a20daaed7b29f3251"


def read(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def test_the_full_manifest_reads_as_it_was_written_and_is_written_as_it_reads() -> None:
    data = read("manifest-v2-full.json")

    manifest = read_sealed(data, "m", expected_seal=FULL_SEAL)

    assert manifest.seal == FULL_SEAL
    assert manifest.to_json() == data
    assert manifest.sealed().to_json() == data
    assert find_restyled(data, "m") is None
    assert manifest.sink_commit_statuses["db"] == SinkCommitStatus.failed("é\x1f")
    assert manifest.pipeline_hash == 2**64 - 1
    assert manifest.inflight_data["trades"][0].data == b"event"
    assert manifest.engine is not None
    assert manifest.engine.logs is not None
    assert manifest.engine.logs.is_delta


def test_the_minimal_manifest_reads() -> None:
    manifest = CheckpointManifestV2.from_json(read("manifest-v2-minimal.json"))

    expected = CheckpointId.parse("0195c0de-7000-7abc-8def-0123456789ab")
    assert manifest == CheckpointManifestV2.new(expected, 1, timestamp_ms=1000)


def test_a_foreign_manifest_with_full_keys_and_a_missing_hash_reads() -> None:
    manifest = read_sealed(read("manifest-v2-foreign.json"), "m")

    snapshot, delta = manifest.operators["window-agg"].partitions
    id = manifest.checkpoint_id
    assert snapshot.path == f"checkpoints/{id}operators/window-agg/partition-0.snap"
    assert delta == PartitionSnapshotEntry(
        partition_id=1,
        is_delta=True,
        path=f"checkpoints/{id}operators/window-agg/partition-1.delta",
        size_bytes=6,
        sha256=None,
    )
    assert manifest.source_offsets["kafka-trades"].offsets["trades-1"] == "5678"
    assert (manifest.watermark, manifest.seal, manifest.writer) == (5000, None, None)


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("manifest-v2-*.json")))
def test_every_golden_manifest_survives_being_written_again(name: str) -> None:
    manifest = CheckpointManifestV2.from_json(read(name))

    assert CheckpointManifestV2.from_json(manifest.to_json()) == manifest
