"""Manifest v1: the 22 fields of others, their strictness, and our digest at the end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast.errors import CorruptError, InvalidInputError, UnsupportedFormatError
from holdfast.manifest import (
    CheckpointManifest,
    ConnectorCheckpoint,
    InFlightRecord,
    ManifestValidationError,
    OperatorCheckpoint,
    SinkCommitStatus,
)
from holdfast.manifest.codec import canonical, sha256_hex
from holdfast.manifest.v1 import DIGEST_KEY, find_restyled_v1

MINIMAL = {"version": 1, "checkpoint_id": 1, "epoch": 1, "timestamp_ms": 1000}
NAMES = [
    "version",
    "checkpoint_id",
    "epoch",
    "timestamp_ms",
    "source_offsets",
    "sink_epochs",
    "sink_commit_statuses",
    "table_offsets",
    "operator_states",
    "table_store_checkpoint_path",
    "wal_position",
    "per_core_wal_positions",
    "watermark",
    "source_watermarks",
    "source_names",
    "sink_names",
    "pipeline_hash",
    "inflight_data",
    "size_bytes",
    "is_incremental",
    "parent_id",
    "state_checksum",
]


def full() -> CheckpointManifest:
    return CheckpointManifest(
        version=1,
        checkpoint_id=42,
        epoch=40,
        timestamp_ms=1773388800123,
        source_offsets={"k": ConnectorCheckpoint(offsets={"t-0": "5"}, epoch=40, metadata={"g": "é"})},
        sink_epochs={"lake": 40},
        sink_commit_statuses={"lake": SinkCommitStatus.PENDING, "db": SinkCommitStatus.failed("a\x1fb")},
        table_offsets={"names": ConnectorCheckpoint.new(1)},
        operator_states={
            "a": OperatorCheckpoint(state_b64="aGVsbG8="),
            "b": OperatorCheckpoint(external=True),
        },
        table_store_checkpoint_path="/cp",
        wal_position=4096,
        per_core_wal_positions=[1, 2],
        watermark=-1,
        source_watermarks={"k": -(2**63)},
        source_names=["k"],
        sink_names=["db", "lake"],
        pipeline_hash=2**64 - 1,
        inflight_data={"a": [InFlightRecord(input_id=1, data_b64="")]},
        size_bytes=5,
        is_incremental=True,
        parent_id=41,
        state_checksum="ab",
    )


def stored(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def test_the_fields_are_stored_in_their_order_and_the_digest_comes_last() -> None:
    document = json.loads(full().to_json())

    assert list(document) == [*NAMES, DIGEST_KEY]
    assert document.pop(DIGEST_KEY) == sha256_hex(canonical(document))
    assert full().to_json() == json.dumps(json.loads(full().to_json()), indent=2, ensure_ascii=False).encode()


def test_a_full_manifest_comes_back() -> None:
    assert CheckpointManifest.from_json(full().to_json()) == full()
    defaults = CheckpointManifest.new(1, 1, timestamp_ms=0)
    for field in msgspec.structs.fields(CheckpointManifest):
        if field.name != "version":
            assert getattr(full(), field.name) != getattr(defaults, field.name), field.name


def test_four_fields_are_enough_and_the_rest_is_empty() -> None:
    assert CheckpointManifest.from_json(stored(MINIMAL)) == CheckpointManifest.new(1, 1, timestamp_ms=1000)


def test_a_new_manifest_has_a_time_and_nothing_else() -> None:
    manifest = CheckpointManifest.new(3, 2)

    assert (manifest.version, manifest.checkpoint_id, manifest.epoch) == (1, 3, 2)
    assert manifest.timestamp_ms > 1_600_000_000_000
    assert manifest.validate() == []
    assert manifest.operator_states == {}


@pytest.mark.parametrize("missing", list(MINIMAL))
def test_without_a_required_field_it_is_corrupt(missing: str) -> None:
    document = {name: value for name, value in MINIMAL.items() if name != missing}

    with pytest.raises(CorruptError, match=missing):
        CheckpointManifest.from_json(stored(document), "dir/manifest.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", "1"),
        ("epoch", 1.0),
        ("epoch", -1),
        ("epoch", True),
        ("epoch", 2**64),
        ("version", 2**32),
        ("watermark", 2**63),
        ("watermark", "1"),
        ("source_offsets", None),
        ("source_offsets", {"a": {"epoch": 1}}),
        ("source_offsets", {"a": {"offsets": {"x": 1}, "epoch": 1}}),
        ("source_offsets", {"a": {"offsets": {}, "epoch": 1, "metadata": None}}),
        ("per_core_wal_positions", None),
        ("per_core_wal_positions", [-1]),
        ("wal_position", None),
        ("is_incremental", 1),
        ("operator_states", {"a": {"external": None}}),
        ("operator_states", {"a": {"external_offset": -1}}),
        ("sink_commit_statuses", {"a": "Failed"}),
        ("sink_commit_statuses", {"a": {"Failed": "x", "Pending": None}}),
        ("inflight_data", {"a": [{"input_id": 1}]}),
        ("inflight_data", {"a": [{"input_id": -1, "data_b64": ""}]}),
        ("state_checksum", 5),
        ("parent_id", -1),
    ],
)
def test_a_wrong_type_is_corrupt_and_says_where(field: str, value: Any) -> None:
    with pytest.raises(CorruptError, match=field):
        CheckpointManifest.from_json(stored(MINIMAL | {field: value}))


@pytest.mark.parametrize("field", ["table_store_checkpoint_path", "watermark", "pipeline_hash", "parent_id"])
def test_an_optional_field_may_be_null(field: str) -> None:
    assert getattr(CheckpointManifest.from_json(stored(MINIMAL | {field: None})), field) is None


def test_an_empty_operator_entry_is_no_state() -> None:
    manifest = CheckpointManifest.from_json(stored(MINIMAL | {"operator_states": {"a": {}}}))

    assert manifest.operator_states["a"].decode_inline() is None


def test_unknown_keys_are_read_over_and_dropped_and_covered_by_the_digest() -> None:
    document = MINIMAL | {"later": [1, {"x": 1}]}
    document[DIGEST_KEY] = sha256_hex(canonical(document))

    manifest = CheckpointManifest.from_json(stored(document))

    assert b"later" not in manifest.to_json()
    with pytest.raises(CorruptError, match="digest"):
        CheckpointManifest.from_json(stored(document | {"later": []}))


@pytest.mark.parametrize("digest", [None, "", 5, "0" * 64])
def test_a_digest_that_is_there_must_match(digest: Any) -> None:
    with pytest.raises(CorruptError, match="digest"):
        CheckpointManifest.from_json(stored(MINIMAL | {DIGEST_KEY: digest}))


def test_digest_before_version() -> None:
    newer = MINIMAL | {"version": 2}
    flipped = json.loads(full().to_json()) | {"version": 2}

    with pytest.raises(UnsupportedFormatError, match="version 2"):
        CheckpointManifest.from_json(stored(newer))
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        CheckpointManifest.from_json(stored(newer | {DIGEST_KEY: sha256_hex(canonical(newer))}))
    with pytest.raises(CorruptError, match="digest"):
        CheckpointManifest.from_json(stored(flipped))
    assert CheckpointManifest.from_json(stored(MINIMAL | {"version": 0})).version == 0


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(full().to_json())

    silent = []
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        try:
            CheckpointManifest.from_json(bytes(data))
            if find_restyled_v1(bytes(data), "m") is None:
                silent.append(bit)
        except CorruptError:
            pass
        data[bit // 8] ^= 1 << bit % 8

    assert silent == []


def test_a_foreign_manifest_in_any_style_is_nobodys_damage() -> None:
    assert find_restyled_v1(stored(MINIMAL), "m") is None
    assert find_restyled_v1(full().to_json(), "m") is None
    assert find_restyled_v1(full().to_json() + b" ", "m") is not None


def test_what_makes_no_sense_is_said_in_the_words_of_the_format() -> None:
    manifest = full().replaced(
        version=0,
        checkpoint_id=0,
        epoch=0,
        timestamp_ms=0,
        sink_epochs={"lake": 1, "z": 1, "other": 1},
        source_names=["else"],
        parent_id=None,
    )

    assert manifest.validate() == [
        ManifestValidationError("manifest version is 0"),
        ManifestValidationError("checkpoint_id is 0"),
        ManifestValidationError("epoch is 0"),
        ManifestValidationError("timestamp_ms is 0 (missing creation time)"),
        ManifestValidationError("sink 'other' has epoch but no commit status"),
        ManifestValidationError("sink 'z' has epoch but no commit status"),
        ManifestValidationError("source_offsets contains 'k' not in source_names"),
        ManifestValidationError("incremental checkpoint has no parent_id"),
    ]


def test_what_is_allowed_is_not_complained_about() -> None:
    manifest = CheckpointManifest.new(1, 1)

    for fine in (
        {"sink_commit_statuses": {"lake": SinkCommitStatus.PENDING}},
        {"sink_epochs": {"lake": 1}},
        {"source_offsets": {"k": ConnectorCheckpoint.new(1)}},
        {"parent_id": 7},
    ):
        assert manifest.replaced(**fine).validate() == []


@pytest.mark.parametrize(("field", "value"), [("epoch", -1), ("wal_position", 2**64), ("watermark", 1.5)])
def test_a_field_that_could_not_be_read_back_is_not_written(field: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match="CheckpointManifest"):
        full().replaced(**{field: value}).to_json()


def test_how_far_external_state_runs() -> None:
    states = {
        "a": OperatorCheckpoint(external=True, external_offset=2048, external_length=512),
        "b": OperatorCheckpoint(external=True, external_offset=0, external_length=2048),
        "c": OperatorCheckpoint(external_offset=9999, external_length=1),
    }

    manifest = CheckpointManifest.new(1, 1).replaced(operator_states=states)

    assert manifest.external_bytes() == 2560
    assert manifest.needs_sidecar()
