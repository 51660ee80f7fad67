"""Manifest v2: what loads, what is refused, and that the seal covers every field there is."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptError, InvalidInputError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.manifest import (
    CheckpointManifestV2,
    ConnectorCheckpoint,
    Engine,
    InFlightRecord,
    LogArtifact,
    OperatorSnapshotEntry,
    PartitionSnapshotEntry,
    SinkCommitStatus,
    SourceOffsetEntry,
    StoredObject,
)
from holdfast.manifest.checks import check_v2
from holdfast.manifest.codec import pretty
from holdfast.manifest.v2 import find_restyled, read_sealed, seal_of

ID = CheckpointId.parse("0195c0de-7000-7abc-8def-0123456789ab")
PARENT = CheckpointId.parse("0195c0dd-0000-7000-8000-000000000001")
MINIMAL = '{"version":2,"checkpoint_id":"0195c0de-7000-7abc-8def-0123456789ab","epoch":1,"timestamp_ms":1000}'


def full() -> CheckpointManifestV2:
    """Every field set to something that is not its default."""
    manifest = CheckpointManifestV2.new(ID, 10, timestamp_ms=1773388800123)
    partition = PartitionSnapshotEntry(
        partition_id=0, is_delta=True, path="batch-000010.lz4#operators/0/x", size_bytes=3, sha256="ab"
    )
    manifest.operators = {"0": OperatorSnapshotEntry(partitions=[partition], total_bytes=3)}
    manifest.source_offsets = {"trades": SourceOffsetEntry(source_type="kafka", offsets={"0": "5"}, epoch=10)}
    manifest.parent_id = PARENT
    manifest.watermark = -5
    manifest.total_size_bytes = 3
    manifest.generation = 7
    manifest.writer = "0" * 32
    manifest.sink_epochs = {"lake": 10}
    manifest.sink_commit_statuses = {"lake": SinkCommitStatus.PENDING, "db": SinkCommitStatus.failed("é\x1f")}
    manifest.sink_receipts = {"lake": [{"files": ["a"]}]}
    manifest.sink_names = ["lake"]
    manifest.source_names = ["trades"]
    manifest.source_watermarks = {"trades": -1}
    manifest.table_offsets = {"names": ConnectorCheckpoint(offsets={"v": "1"}, epoch=1, metadata={"a": "b"})}
    manifest.pipeline_hash = 2**64 - 1
    manifest.topology = {"sources": {"trades": {"hash": "1", "inputs": []}}}
    manifest.inflight_data = {"trades": [InFlightRecord.of(0, b"event")]}
    manifest.objects = {"batch-000010.lz4": StoredObject(size_bytes=50, sha256="cd")}
    logs = LogArtifact(path="batch-000010.lz4#logs/spark.delta", size_bytes=2, sha256="ef", is_delta=True)
    manifest.engine = Engine(version="4.3.0", query_id="q", batch_id=9, operators={"0": "agg"}, logs=logs)
    manifest.parent_seal = "12"
    return manifest


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every single value in a document, empty containers included."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [leaf for name, item in items for leaf in leaves(item, (*path, name))]
    return below or [path]


def changed(document: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    """A copy of which the value at ``path`` is another one."""
    copy = json.loads(json.dumps(document))
    place = copy
    for step in path[:-1]:
        place = place[step]
    old = place[path[-1]]
    place[path[-1]] = (
        old + 1
        if type(old) is int
        else old + "x"
        if isinstance(old, str)
        else not old
        if old is not None
        else 1
    )
    return copy


def test_a_full_manifest_comes_back_as_it_was() -> None:
    sealed = full().sealed()

    again = CheckpointManifestV2.from_json(sealed.to_json())

    assert again == sealed
    assert again.seal_matches()
    assert read_sealed(sealed.to_json(), "m", expected_seal=sealed.seal) == sealed
    assert sealed.to_json() == json.dumps(json.loads(sealed.to_json()), indent=2, ensure_ascii=False).encode()


def test_the_full_manifest_of_these_tests_leaves_no_field_at_its_default() -> None:
    manifest = full().sealed()

    defaults = CheckpointManifestV2(version=2, checkpoint_id=ID, epoch=1, timestamp_ms=0)
    for field in msgspec.structs.fields(CheckpointManifestV2):
        if field.name not in ("version", "checkpoint_id"):
            assert getattr(manifest, field.name) != getattr(defaults, field.name), field.name


DOCUMENT = json.loads(full().sealed().to_json())


@pytest.mark.parametrize(
    "path", [p for p in leaves(DOCUMENT) if p != ("seal",)], ids=lambda p: ".".join(map(str, p))
)
def test_the_seal_covers_every_value(path: tuple[Any, ...]) -> None:
    damaged = pretty(changed(DOCUMENT, path))

    with pytest.raises(CorruptError, match="does not match its seal"):
        read_sealed(damaged, "m")


@given(st.sampled_from(sorted(DOCUMENT)))
def test_a_field_that_was_taken_out_breaks_the_seal(name: str) -> None:
    document = {key: value for key, value in DOCUMENT.items() if key != name}

    with pytest.raises(CorruptError, match=r"does not match its seal|not the manifest the ledger names"):
        # Without `seal` nothing is left to compare with but what the ledger says.
        read_sealed(pretty(document), "m", expected_seal=DOCUMENT["seal"] + ("x" if name == "seal" else ""))


def test_a_manifest_that_lost_its_seal_is_found_by_the_ledgers_copy() -> None:
    seal = DOCUMENT["seal"]
    renamed = pretty({("sean" if name == "seal" else name): value for name, value in DOCUMENT.items()})

    assert read_sealed(renamed, "m").seal is None
    with pytest.raises(CorruptError, match="not the manifest the ledger names"):
        read_sealed(renamed, "m", expected_seal=seal)


def test_two_manifests_with_sound_seals_are_not_interchangeable() -> None:
    other = full()
    other.epoch = 11

    with pytest.raises(CorruptError, match="not the manifest the ledger names"):
        read_sealed(other.sealed().to_json(), "m", expected_seal=full().sealed().seal)


def test_every_flipped_bit_is_found() -> None:
    sealed = full().sealed()
    data = bytearray(sealed.to_json())

    silent = []
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        try:
            read_sealed(bytes(data), "m", expected_seal=sealed.seal)
            if find_restyled(bytes(data), "m") is None:
                silent.append(bit)
        except CorruptError:
            pass
        data[bit // 8] ^= 1 << bit % 8

    assert silent == []


def test_a_flip_that_changes_no_meaning_loads_and_is_reported() -> None:
    sealed = full().sealed()
    data = sealed.to_json().replace(b"\\u001f", b"\\u001F")

    assert data != sealed.to_json()
    assert read_sealed(data, "m") == sealed
    assert find_restyled(data, "m") is not None
    assert find_restyled(sealed.to_json(), "m") is None


def test_the_minimal_foreign_manifest_loads_with_everything_else_empty() -> None:
    manifest = read_sealed(MINIMAL.encode(), "m")

    assert manifest == CheckpointManifestV2.new(ID, 1, timestamp_ms=1000)
    assert [issue.code for issue in check_v2(manifest)] == ["no-seal"]
    assert find_restyled(MINIMAL.encode(), "m") is None


@pytest.mark.parametrize("form", ["{{{}}}", "urn:uuid:{}", "{}"])
def test_a_foreign_id_is_read_in_every_form_and_written_in_one(form: str) -> None:
    text = MINIMAL.replace(str(ID), form.format(str(ID).upper()))

    manifest = CheckpointManifestV2.from_json(text.encode())

    assert manifest.checkpoint_id == ID
    assert f'"checkpoint_id": "{ID}"'.encode() in manifest.to_json()


def test_unknown_keys_are_sealed_read_over_and_dropped_when_written_again() -> None:
    document = json.loads(full().to_json()) | {"later": {"a": 1.5}}
    document["seal"] = seal_of(document)

    manifest = read_sealed(pretty(document), "m")

    assert b"later" not in manifest.to_json()
    assert not manifest.seal_matches()
    with pytest.raises(CorruptError):
        read_sealed(pretty(document | {"later": {"a": 1.25}}), "m")


@pytest.mark.parametrize("missing", ["version", "checkpoint_id", "epoch", "timestamp_ms"])
def test_a_manifest_without_a_required_field_is_corrupt(missing: str) -> None:
    document = {name: value for name, value in json.loads(MINIMAL).items() if name != missing}

    with pytest.raises(CorruptError, match=missing):
        CheckpointManifestV2.from_json(json.dumps(document).encode(), "dir/manifest.json")


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
        ("operators", None),
        ("source_offsets", None),
        ("total_size_bytes", None),
        ("checkpoint_id", "latest"),
        ("checkpoint_id", 7),
        ("parent_id", ""),
        ("sink_commit_statuses", {"a": "Failed"}),
        ("sink_commit_statuses", {"a": None}),
        ("operators", {"0": {}}),
        ("operators", {"0": {"partitions": [{"partition_id": 0}]}}),
        ("operators", {"0": {"partitions": None}}),
        ("source_offsets", {"a": {"source_type": "kafka", "offsets": {"0": 5}, "epoch": 1}}),
    ],
)
def test_a_wrong_type_is_corrupt_and_says_where(field: str, value: Any) -> None:
    document = json.loads(MINIMAL) | {field: value}

    with pytest.raises(CorruptError, match=field) as caught:
        CheckpointManifestV2.from_json(json.dumps(document).encode(), "dir/manifest.json")
    assert caught.value.key == "dir/manifest.json"


def test_a_newer_version_asks_for_an_upgrade_only_when_its_seal_matches() -> None:
    unsealed = json.loads(MINIMAL) | {"version": 3, "epoch": {"now": "a struct"}}
    sealed = unsealed | {"seal": seal_of(unsealed)}
    flipped = DOCUMENT | {"version": 3}

    for document in (unsealed, sealed):
        with pytest.raises(UnsupportedFormatError, match="version 3"):
            CheckpointManifestV2.from_json(pretty(document))
        with pytest.raises(UnsupportedFormatError, match="version 3"):
            read_sealed(pretty(document), "m")
    for read in (CheckpointManifestV2.from_json, lambda data: read_sealed(data, "m")):
        with pytest.raises(CorruptError, match="seal"):
            read(pretty(flipped))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", 2**64),
        ("epoch", -1),
        ("watermark", 2.5),
        ("sink_receipts", {"lake": [1.5]}),
        ("sink_names", ["\ud800"]),
        ("topology", {"a": float("inf")}),
        ("parent_id", "text"),
        ("source_offsets", {"a": "text"}),
    ],
)
def test_a_field_that_could_not_be_read_back_is_not_written(field: str, value: Any) -> None:
    manifest = full()
    setattr(manifest, field, value)

    with pytest.raises(InvalidInputError, match="CheckpointManifestV2"):
        manifest.to_json()
    with pytest.raises(InvalidInputError, match="CheckpointManifestV2"):
        manifest.sealed()


def test_what_is_wrong_in_a_manifest_that_parses_is_found_with_its_weight() -> None:
    manifest = full()
    manifest.version = manifest.epoch = manifest.timestamp_ms = 0
    manifest.parent_id = ID
    manifest.sink_epochs = {"lake": 1, "other": 1}
    manifest.source_names = ["else"]
    partition = PartitionSnapshotEntry(partition_id=0, is_delta=False, path="p", size_bytes=9)
    manifest.operators = {"0": OperatorSnapshotEntry(partitions=[partition, partition])}

    issues = {issue.code: issue.severity for issue in check_v2(manifest)}

    assert issues == {
        "version-zero": "error",
        "epoch-zero": "error",
        "own-parent": "error",
        "two-snapshots": "error",
        "no-timestamp": "warning",
        "no-seal": "warning",
        "sink-without-status": "warning",
        "sinks-pending": "warning",
        "unknown-source": "warning",
        "no-digest": "warning",
        "total-size": "warning",
    }
