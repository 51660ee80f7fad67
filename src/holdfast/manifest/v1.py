"""Manifest v1: a numbered checkpoint with one manifest and at most one sidecar. Readable, and read, by
others.

Twenty-two fields in the order they are stored. We add one key at the end, ``manifest_sha256``: the hash of
the canonical document without that key. Others read over it; where it is absent, nothing is asked of the
bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from holdfast.errors import CorruptError, UnsupportedFormatError
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
    InFlightRecord,
    OperatorCheckpoint,
    SinkCommitStatus,
)

VERSION: Final = 1
DIGEST_KEY: Final = "manifest_sha256"


@dataclass(frozen=True, slots=True)
class ManifestValidationError:
    """Something a manifest says that makes no sense. Not raised: a list of these is the result."""

    message: str

    def __str__(self) -> str:
        return self.message


class CheckpointManifest(msgspec.Struct, kw_only=True):
    """What a v1 checkpoint is. Not frozen: whoever takes it fills it in."""

    version: U32
    checkpoint_id: U64
    epoch: U64
    timestamp_ms: U64
    source_offsets: dict[str, ConnectorCheckpoint] = {}
    sink_epochs: dict[str, U64] = {}
    sink_commit_statuses: dict[str, SinkCommitStatus] = {}
    table_offsets: dict[str, ConnectorCheckpoint] = {}
    operator_states: dict[str, OperatorCheckpoint] = {}
    table_store_checkpoint_path: str | None = None
    wal_position: U64 = 0
    per_core_wal_positions: list[U64] = []
    watermark: I64 | None = None
    source_watermarks: dict[str, I64] = {}
    source_names: list[str] = []
    sink_names: list[str] = []
    pipeline_hash: U64 | None = None
    inflight_data: dict[str, list[InFlightRecord]] = {}
    size_bytes: U64 = 0
    is_incremental: bool = False
    parent_id: U64 | None = None
    state_checksum: str | None = None

    @classmethod
    def new(cls, checkpoint_id: int, epoch: int, *, timestamp_ms: int | None = None) -> Self:
        now = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        return cls(version=VERSION, checkpoint_id=checkpoint_id, epoch=epoch, timestamp_ms=now)

    @classmethod
    def from_json(cls, data: bytes, key: str = "manifest.json") -> Self:
        """Parse, and check the digest where there is one. Raises CorruptError or UnsupportedFormatError."""
        document = parse_object(data, key)
        _check_digest(document, key)
        version = document.get("version")
        if type(version) is int and VERSION < version < 2**32:
            raise UnsupportedFormatError(key, f"manifest version {version}, where {VERSION} is expected")
        return from_document(document, cls, key)

    def to_json(self) -> bytes:
        """The bytes as stored, digest included. Raises InvalidInputError for what could not be read back."""
        document = to_document(self)
        return pretty(document | {DIGEST_KEY: sha256_hex(canonical(document))})

    def validate(self) -> list[ManifestValidationError]:
        """What makes no sense in it. Empty: all of it does."""
        return [ManifestValidationError(message) for message in self._findings()]

    def replaced(self, **fields: Any) -> Self:
        """A copy with these fields set. The other fields are the same objects."""
        return msgspec.structs.replace(self, **fields)

    def content(self) -> dict[str, Any]:
        """Every field as JSON values: two manifests are the same checkpoint where these are equal."""
        return to_document(self)

    def external_bytes(self) -> int:
        """How long the sidecar has to be at least, so that no operator's state runs past its end."""
        return max(
            (s.external_offset + s.external_length for s in self.operator_states.values() if s.external),
            default=0,
        )

    def needs_sidecar(self) -> bool:
        return self.state_checksum is not None or any(s.external for s in self.operator_states.values())

    def _findings(self) -> Iterator[str]:
        if self.version == 0:
            yield "manifest version is 0"
        if self.checkpoint_id == 0:
            yield "checkpoint_id is 0"
        if self.epoch == 0:
            yield "epoch is 0"
        if self.timestamp_ms == 0:
            yield "timestamp_ms is 0 (missing creation time)"
        if self.sink_commit_statuses:
            for sink in sorted(self.sink_epochs.keys() - self.sink_commit_statuses.keys()):
                yield f"sink '{sink}' has epoch but no commit status"
        if self.source_names:
            for source in sorted(self.source_offsets.keys() - set(self.source_names)):
                yield f"source_offsets contains '{source}' not in source_names"
        if self.is_incremental and self.parent_id is None:
            yield "incremental checkpoint has no parent_id"


def find_restyled_v1(data: bytes, key: str) -> str | None:
    """Why ``data``, sound by its digest, is not byte for byte what we stored. None if it is, or is not
    ours.
    """
    document = parse_object(data, key)
    if DIGEST_KEY not in document or is_stored_form(data, document):
        return None
    return "the content is sound, but its bytes are not the ones that were written"


def _check_digest(document: dict[str, Any], key: str) -> None:
    if DIGEST_KEY in document:
        stored = document[DIGEST_KEY]
        computed = _digest_without(document, DIGEST_KEY)
        if stored != computed:
            raise CorruptError(
                key, f"its content does not match its digest: expected {stored}, got {computed}"
            )
        return
    # A flip in the key's own name would make this a foreign manifest of which nothing is asked.
    for name, value in document.items():
        looks_like_one = isinstance(value, str) and len(value) == 64 and name not in _FIELDS
        if looks_like_one and value == _digest_without(document, name):
            raise CorruptError(key, f"its digest is stored as {name!r}, a name that was damaged")


def _digest_without(document: dict[str, Any], name: str) -> str:
    return sha256_hex(canonical({field: value for field, value in document.items() if field != name}))


_FIELDS: Final = frozenset(CheckpointManifest.__struct_fields__)
