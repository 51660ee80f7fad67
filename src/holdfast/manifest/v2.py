"""Manifest v2: a checkpoint in parts, with its parent. Complete, sealed, and never changed once published.

The seal is the SHA-256 of the canonical document without ``seal`` itself. ``parent_seal`` is inside it, so
seals form a chain; the hash of every object is inside it, so everything a restore reads is reached from it.

The first nine fields are those of the format we are compatible with; the others are ours, and older readers
read over them.
"""

from __future__ import annotations

import time
from typing import Any, Self

import msgspec

from holdfast.errors import CorruptError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.manifest.codec import (
    canonical,
    from_document,
    is_stored_form,
    parse_object,
    pretty,
    sha256_hex,
    to_document,
)
from holdfast.manifest.parts import (
    I64,
    U32,
    U64,
    ConnectorCheckpoint,
    Engine,
    InFlightRecord,
    OperatorSnapshotEntry,
    Receipt,
    SinkCommitStatus,
    SourceOffsetEntry,
    StoredObject,
)

VERSION = 2
#: Of the one content of a checkpoint these are no part: two savers of the same may differ in them.
FILLED_BY_STORES = frozenset({"generation", "writer", "parent_seal", "seal", "objects"})


class CheckpointManifestV2(msgspec.Struct, kw_only=True):
    """What a v2 checkpoint is. Not frozen: a writer fills it in until it publishes."""

    version: U32
    checkpoint_id: CheckpointId
    epoch: U64
    timestamp_ms: U64
    operators: dict[str, OperatorSnapshotEntry] = {}
    source_offsets: dict[str, SourceOffsetEntry] = {}
    parent_id: CheckpointId | None = None
    watermark: I64 | None = None
    total_size_bytes: U64 = 0

    generation: U64 = 0
    writer: str | None = None
    sink_epochs: dict[str, U64] = {}
    sink_commit_statuses: dict[str, SinkCommitStatus] = {}
    sink_receipts: dict[str, list[Receipt]] = {}
    sink_names: list[str] = []
    source_names: list[str] = []
    source_watermarks: dict[str, I64] = {}
    table_offsets: dict[str, ConnectorCheckpoint] = {}
    pipeline_hash: U64 | None = None
    topology: dict[str, Any] | None = None
    inflight_data: dict[str, list[InFlightRecord]] = {}
    objects: dict[str, StoredObject] = {}
    engine: Engine | None = None
    parent_seal: str | None = None
    seal: str | None = None

    @classmethod
    def new(cls, checkpoint_id: CheckpointId, epoch: int, *, timestamp_ms: int | None = None) -> Self:
        now = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        return cls(version=VERSION, checkpoint_id=checkpoint_id, epoch=epoch, timestamp_ms=now)

    @classmethod
    def from_json(cls, data: bytes, key: str = "manifest.json") -> Self:
        """Parse. Raises CorruptError, or UnsupportedFormatError for a newer version.

        The seal is the store's to check (``read_sealed``): a caller may want to look at a damaged manifest.
        """
        document = parse_object(data, key)
        return from_document(_of_known_version(document, key), cls, key)

    def to_json(self) -> bytes:
        """The bytes as stored, with the seal this manifest has (or has not: see ``sealed``).

        Raises InvalidInputError for a field that could not be read back.
        """
        return pretty(to_document(self))

    def sealed(self) -> Self:
        """A copy that carries the seal of its present content."""
        return self.replaced(seal=self.computed_seal())

    def sealed_json(self) -> tuple[Self, bytes]:
        """``sealed()`` and its ``to_json()``, in one pass over what may be thousands of partitions."""
        document = to_document(self)
        document["seal"] = seal_of(document)
        return self.replaced(seal=document["seal"]), pretty(document)

    def replaced(self, **fields: Any) -> Self:
        """A copy with these fields set. The other fields are the same objects."""
        return msgspec.structs.replace(self, **fields)

    def computed_seal(self) -> str:
        """The seal these fields would get. A manifest read with unknown keys has another: see
        ``read_sealed``.
        """
        return seal_of(to_document(self))

    def seal_matches(self) -> bool:
        return self.seal is not None and self.seal == self.computed_seal()

    def needs_parent(self) -> bool:
        """Whether some state here is only what changed since the parent."""
        if self.engine is not None and self.engine.logs is not None and self.engine.logs.is_delta:
            return True
        return any(
            bool(
                {part.partition_id for part in entry.partitions if part.is_delta}
                - {part.partition_id for part in entry.partitions if not part.is_delta}
            )
            for entry in self.operators.values()
        )


def differing_fields(one: CheckpointManifestV2, other: CheckpointManifestV2) -> list[str]:
    """The fields in which two manifests say different things. What a store fills in itself is not content."""
    documents = to_document(one), to_document(other)
    names = documents[0].keys() - FILLED_BY_STORES
    return sorted(name for name in names if documents[0][name] != documents[1][name])


def seal_of(document: dict[str, Any]) -> str:
    """The seal of a document, unknown keys included, whatever ``seal`` it carries."""
    return sha256_hex(canonical({name: value for name, value in document.items() if name != "seal"}))


def read_sealed(data: bytes, key: str, *, expected_seal: str | None = None) -> CheckpointManifestV2:
    """Parse and check the seal, digest before version. Raises CorruptError or UnsupportedFormatError.

    ``expected_seal`` is what the ledger says of this manifest. Without it a manifest that has no seal loads:
    it is somebody else's. With it, a missing seal is a lost one, so corrupt.
    """
    document = parse_object(data, key)
    _check_seal(document, key, expected_seal)
    return from_document(_of_known_version(document, key), CheckpointManifestV2, key)


def find_restyled(data: bytes, key: str) -> str | None:
    """Why ``data``, sound by its seal, is not byte for byte what we stored. None if it is, or is not ours.

    Harmless to a reader, since the meaning is sealed, but nobody writes to a published manifest: something
    else changed these bytes. ``verify`` reports it. Raises CorruptError as ``parse_object`` does.
    """
    document = parse_object(data, key)
    if "seal" not in document or is_stored_form(data, document):
        return None
    return "the content is sound, but its bytes are not the ones that were written"


def _of_known_version(document: dict[str, Any], key: str) -> dict[str, Any]:
    version = document.get("version")
    if type(version) is int and VERSION < version < 2**32:
        # A flipped bit in the version must not be taken for the future: digest before version.
        _check_seal(document, key, None)
        raise UnsupportedFormatError(key, f"manifest version {version}, and we read up to {VERSION}")
    return document


def _check_seal(document: dict[str, Any], key: str, expected: str | None) -> None:
    stored = document.get("seal")
    if stored is None and expected is None:
        return
    if stored is not None and not isinstance(stored, str):
        raise CorruptError(key, "its seal is not a text")
    computed = seal_of(document)
    if stored is not None and stored != computed:
        raise CorruptError(key, f"its content does not match its seal: expected {stored}, got {computed}")
    if expected is not None and expected != computed:
        raise CorruptError(
            key, f"it is not the manifest the ledger names: expected seal {expected}, got {computed}"
        )
