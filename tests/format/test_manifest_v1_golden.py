"""Numbered manifests written once and never again; one of them in the words of another writer."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.manifest import CheckpointManifest, InFlightRecord, SinkCommitStatus
from holdfast.manifest.codec import pretty
from holdfast.manifest.v1 import DIGEST_KEY

GOLDEN = Path(__file__).parent / "golden"


def test_our_full_manifest_reads_and_is_written_the_same() -> None:
    data = (GOLDEN / "manifest-v1-full.json").read_bytes()

    manifest = CheckpointManifest.from_json(data)

    assert manifest.to_json() == data
    assert manifest.sink_commit_statuses["db"] == SinkCommitStatus.failed("a\x1fb")
    assert (manifest.pipeline_hash, manifest.watermark) == (2**64 - 1, -1)


def test_a_foreign_manifest_reads_and_is_written_with_the_same_bytes_but_for_our_digest() -> None:
    data = (GOLDEN / "manifest-v1-foreign.json").read_bytes()

    manifest = CheckpointManifest.from_json(data)

    assert manifest.validate() == []
    assert manifest.inflight_data["join-op"] == [
        InFlightRecord.of(0, b"buffered-event"),
        InFlightRecord.of(1, b""),
    ]
    assert manifest.operator_states["filter"].decode_inline() == b"hello"
    assert manifest.pipeline_hash == 16045690984503054900
    written = json.loads(manifest.to_json())
    assert len(written.pop(DIGEST_KEY)) == 64
    assert pretty(written) == data


def test_the_minimal_manifest_reads() -> None:
    data = (GOLDEN / "manifest-v1-minimal.json").read_bytes()

    assert CheckpointManifest.from_json(data) == CheckpointManifest.new(1, 1, timestamp_ms=1000)
