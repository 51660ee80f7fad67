"""The pieces manifests are made of, shared by v1 and v2. An edit here is a format change.

Fields stand in the order they are stored. A field without a default must be there on read; ``null``
is read only where ``None`` is a value.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from holdfast.errors import CorruptError
from holdfast.manifest.codec import JsonValue, check_json
from holdfast.manifest.status import SinkCommitStatus

__all__ = [
    "I64",
    "U32",
    "U64",
    "ConnectorCheckpoint",
    "Engine",
    "InFlightRecord",
    "JsonValue",
    "LogArtifact",
    "OperatorCheckpoint",
    "OperatorSnapshotEntry",
    "PartitionSnapshotEntry",
    "Receipt",
    "SinkCommitStatus",
    "SourceOffsetEntry",
    "StoredObject",
    "check_receipt",
]

# The upper end of 64 bits is the parser's to watch: msgspec knows bounds up to 2**63 - 1 only.
U64: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
U32: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
I64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

#: What a sink's ``prepare`` returns and its ``commit`` gets back, maybe a restart later: JSON without floats.
Receipt: TypeAlias = JsonValue


def check_receipt(receipt: Receipt, sink: str) -> None:
    """InvalidInputError for a receipt that would not come back as it was given."""
    check_json(receipt, f"the receipt of sink {sink!r}")


class ConnectorCheckpoint(msgspec.Struct, frozen=True):
    """Where a connector stands, in its own words. ``epoch`` is the connector's, seldom the manifest's."""

    offsets: dict[str, str]
    epoch: U64
    metadata: dict[str, str] = {}

    @classmethod
    def new(cls, epoch: int) -> ConnectorCheckpoint:
        return cls(offsets={}, epoch=epoch)

    @classmethod
    def with_offsets(cls, epoch: int, offsets: Mapping[str, str]) -> ConnectorCheckpoint:
        return cls(offsets=dict(offsets), epoch=epoch)


class OperatorCheckpoint(msgspec.Struct, frozen=True):
    """One operator's state in a v1 manifest: inline as base64, or a slice of the sidecar ``state.bin``."""

    state_b64: str | None = None
    external: bool = False
    external_offset: U64 = 0
    external_length: U64 = 0

    @classmethod
    def from_bytes(
        cls, data: bytes, threshold: int, current_offset: int
    ) -> tuple[OperatorCheckpoint, bytes | None]:
        """``data`` inline up to ``threshold`` bytes; else a slice, and the bytes for the sidecar."""
        if len(data) <= threshold:
            return cls(state_b64=base64.b64encode(data).decode()), None
        return cls(external=True, external_offset=current_offset, external_length=len(data)), data

    def decode_inline(self) -> bytes | None:
        """The inline bytes, None if there are none. Raises CorruptError: no state is dropped in silence."""
        return None if self.state_b64 is None else decode_base64(self.state_b64, "operator state")


class InFlightRecord(msgspec.Struct, frozen=True):
    """An event that was on its way to input ``input_id`` and is to be read first after a restore."""

    input_id: U64
    data_b64: str

    @classmethod
    def of(cls, input_id: int, data: bytes) -> InFlightRecord:
        return cls(input_id=input_id, data_b64=base64.b64encode(data).decode())

    @property
    def data(self) -> bytes:
        """The event. Raises CorruptError."""
        return decode_base64(self.data_b64, f"in-flight data of input {self.input_id}")


class PartitionSnapshotEntry(msgspec.Struct, frozen=True):
    """One artifact: where it lies, how long it is, and what its bytes hash to (as stored inside a pack)."""

    partition_id: U32
    is_delta: bool
    path: str
    size_bytes: U64
    sha256: str | None = None


class OperatorSnapshotEntry(msgspec.Struct, frozen=True):
    partitions: list[PartitionSnapshotEntry]
    total_bytes: U64 = 0


class SourceOffsetEntry(msgspec.Struct, frozen=True):
    """Where the *next* read of a source starts."""

    source_type: str
    offsets: dict[str, str]
    epoch: U64


class StoredObject(msgspec.Struct, frozen=True):
    """An object as it lies in the store: every byte of it counts."""

    size_bytes: U64
    sha256: str


class LogArtifact(msgspec.Struct, frozen=True):
    """The artifact that holds the engine's own logs (offsets, commits, source logs, metadata)."""

    path: str
    size_bytes: U64
    sha256: str
    is_delta: bool = False


class Engine(msgspec.Struct, frozen=True):
    """The engine whose state this is: what a restore must match, and what ``show`` prints."""

    name: str = "spark"
    version: str | None = None
    query_id: str | None = None
    batch_id: I64 | None = None
    state_provider: str | None = None
    state_format: I64 | None = None
    shuffle_partitions: I64 | None = None
    plan_fingerprint: str | None = None
    operators: dict[str, str] = {}
    logs: LogArtifact | None = None

    def replaced(self, **facts: Any) -> Engine:
        """These facts with some of them others."""
        return msgspec.structs.replace(self, **facts)


def decode_base64(text: str, what: str) -> bytes:
    """RFC 4648, padded, nothing else: two texts never mean the same bytes. Raises CorruptError."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptError(what, f"base64 decode failed: {error}") from None
    # b64decode forgives set bits after the end of the data; re-encoding does not.
    if base64.b64encode(data).decode() != text:
        raise CorruptError(what, "base64 decode failed: bits are set after the end of the data")
    return data
