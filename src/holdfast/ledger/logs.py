"""The log files an epoch added: in its record while they are short, objects of their own when they are long.

They are what a lost state is rebuilt from, and are kept apart from the manifest on purpose: a corrupt
manifest never hides what an epoch read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from holdfast.blobs.base import BlobStore
from holdfast.errors import CorruptError, KeyExistsError, KeyNotFoundError
from holdfast.ids import CheckpointId
from holdfast.layout import log_key
from holdfast.ledger.records import Decision, LogObject

#: What a record holds of its logs, all together.
INLINE_BYTES: Final = 256 * 1024


def store_logs(
    blobs: BlobStore, epoch: int, id: CheckpointId, logs: Mapping[str, str]
) -> dict[str, str | LogObject]:
    """``logs`` as a decision holds them. The longest become objects, durable at once, until the rest fits."""
    sizes = {name: len(text.encode()) for name, text in logs.items()}
    inline = sum(sizes.values())
    stored: dict[str, str | LogObject] = dict(logs)
    for name in sorted(logs, key=lambda name: (-sizes[name], name)):
        if inline <= INLINE_BYTES:
            break
        stored[name] = _store(blobs, epoch, id, logs[name].encode())
        inline -= sizes[name]
    return stored


def read_logs(blobs: BlobStore, decision: Decision) -> dict[str, str]:
    """The log files of ``decision``, by name. Raises CorruptError for a missing or wrong one."""
    return {
        name: log if isinstance(log, str) else _read(blobs, log)
        for name, log in sorted(decision.logs.items())
    }


def _store(blobs: BlobStore, epoch: int, id: CheckpointId, data: bytes) -> LogObject:
    sha256 = hashlib.sha256(data).hexdigest()
    key = log_key(epoch, id, sha256)
    try:
        blobs.create(key, data)
    except KeyExistsError:
        # The name holds the hash and this attempt's id: an earlier try of ours, or two equal files of one
        # epoch.
        if blobs.get(key) != data:
            raise CorruptError(key, "its content is not what its name says") from None
    return LogObject(key=key, size_bytes=len(data), sha256=sha256)


def _read(blobs: BlobStore, log: LogObject) -> str:
    try:
        data = blobs.get(log.key)
    except KeyNotFoundError:
        raise CorruptError(log.key, "a ledger record names it, and it is missing") from None
    if len(data) != log.size_bytes:
        raise CorruptError(log.key, f"it has {len(data)} bytes; {log.size_bytes} were recorded")
    if hashlib.sha256(data).hexdigest() != log.sha256:
        raise CorruptError(log.key, "its content does not match the digest in its ledger record")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(log.key, f"it is not UTF-8: {error.reason} at byte {error.start}") from None
