"""Where things lie: keys from ids and names, and back. Nothing here reads or writes anything.

    checkpoints/_latest
    checkpoints/{id}/manifest.json
    checkpoints/{id}/operators/{operator}/partition-{n}.snap | .delta
    checkpoints/{id}/offsets/{source}.json
    checkpoints/{id}/batch-{epoch:06}.lz4
    ledger/{n:012}.json
    ledger/boundary-{n:012}.json
    logs/{epoch:012}-{id}-{sha256}

An older writer left out the slash after the id and stored full keys as artifact paths; both are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from holdfast.errors import InvalidInputError
from holdfast.ids import CheckpointId

LEDGER_PREFIX = "ledger/"
LOGS_PREFIX = "logs/"
MANIFEST_NAME = "manifest.json"

# Control characters (C0, DEL, C1) and what is no character at all, the separator, and the escape itself.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff/%]")
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_STARTS_WITH_ID = re.compile(_UUID, re.ASCII)
_MANIFEST_OF = re.compile(rf"({_UUID})/?{re.escape(MANIFEST_NAME)}", re.ASCII)
_PACKED = re.compile(r"(?!operators/)((?:.*?/)??batch-[0-9]{6,}(?:-[0-9]+)?\.lz4)#(.+)", re.ASCII | re.DOTALL)
_RECORD = re.compile(rf"{LEDGER_PREFIX}([0-9]{{12}})\.json", re.ASCII)
_BOUNDARY = re.compile(rf"{LEDGER_PREFIX}boundary-([0-9]{{12}})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class CheckpointPaths:
    """Keys of the partitioned (v2) layout below ``base_prefix``."""

    base_prefix: str = "checkpoints/"

    def __post_init__(self) -> None:
        if self.base_prefix and not self.base_prefix.endswith("/"):
            object.__setattr__(self, "base_prefix", self.base_prefix + "/")

    def latest_pointer(self) -> str:
        return f"{self.base_prefix}_latest"

    def checkpoint_dir(self, id: CheckpointId) -> str:
        """The prefix of everything this checkpoint wrote, with its slash."""
        return f"{self.base_prefix}{id}/"

    def manifest(self, id: CheckpointId) -> str:
        return f"{self.checkpoint_dir(id)}{MANIFEST_NAME}"

    def old_manifest(self, id: CheckpointId) -> str:
        """Where the older writer put it: no slash after the id. Read only."""
        return f"{self.base_prefix}{id}{MANIFEST_NAME}"

    def snapshot(self, id: CheckpointId, operator: str, partition: int) -> str:
        return self.checkpoint_dir(id) + artifact_path(operator, partition, delta=False)

    def delta(self, id: CheckpointId, operator: str, partition: int) -> str:
        return self.checkpoint_dir(id) + artifact_path(operator, partition, delta=True)

    def source_offset(self, id: CheckpointId, source: str) -> str:
        return f"{self.checkpoint_dir(id)}offsets/{encode_name(source)}.json"

    def batch(self, id: CheckpointId, epoch: int, attempt: int = 0) -> str:
        return self.checkpoint_dir(id) + batch_name(epoch, attempt)

    def state(self, id: CheckpointId) -> str:
        """The sidecar that ``save_state_data`` keeps."""
        return f"{self.checkpoint_dir(id)}state.bin"

    def manifest_id(self, key: str) -> CheckpointId | None:
        """Whose manifest lies at ``key``, in the present or the older form; None if it is no manifest."""
        if not key.startswith(self.base_prefix):
            return None
        matched = _MANIFEST_OF.fullmatch(key, len(self.base_prefix))
        return CheckpointId.parse(matched[1]) if matched else None

    def owner(self, key: str) -> CheckpointId | None:
        """The checkpoint that ``key`` was written for, in either form; None for anything else."""
        if not key.startswith(self.base_prefix):
            return None
        matched = _STARTS_WITH_ID.match(key, len(self.base_prefix))
        return CheckpointId.parse(matched[0]) if matched else None

    def resolve(self, id: CheckpointId, path: str) -> str:
        """The key of an artifact path as a manifest of ``id`` holds it: relative, or already a full key."""
        return path if self.owner(path) is not None else self.checkpoint_dir(id) + path


def artifact_path(operator: str, partition: int, *, delta: bool) -> str:
    """An artifact's path relative to its checkpoint."""
    if partition < 0:
        raise InvalidInputError(f"operator {operator!r}: partition {partition} is negative")
    return f"operators/{encode_name(operator)}/partition-{partition}.{'delta' if delta else 'snap'}"


def batch_name(epoch: int, attempt: int = 0) -> str:
    if epoch < 0 or attempt < 0:
        raise InvalidInputError(f"no batch has epoch {epoch}, attempt {attempt}")
    return f"batch-{epoch:06}.lz4" if attempt == 0 else f"batch-{epoch:06}-{attempt}.lz4"


def packed_path(batch: str, entry: str) -> str:
    """How a manifest names an entry inside a packed object."""
    return f"{batch}#{entry}"


def split_packed(path: str) -> tuple[str, str | None]:
    """The object and the entry in it; the entry is None where the path is an object of its own.

    An operator may have ``#`` in its name, so only a batch's name before it makes a packed path.
    """
    matched = _PACKED.fullmatch(path)
    return (matched[1], matched[2]) if matched else (path, None)


def ledger_key(number: int) -> str:
    return f"{LEDGER_PREFIX}{_counted(number)}.json"


def boundary_key(number: int) -> str:
    return f"{LEDGER_PREFIX}boundary-{_counted(number)}.json"


def ledger_number(key: str) -> int | None:
    """The record that ``key`` holds, or None: boundaries and strangers are no records."""
    matched = _RECORD.fullmatch(key)
    return int(matched[1]) if matched else None


def boundary_number(key: str) -> int | None:
    matched = _BOUNDARY.fullmatch(key)
    return int(matched[1]) if matched else None


def log_key(epoch: int, id: CheckpointId, sha256: str) -> str:
    return f"{LOGS_PREFIX}{epoch:012}-{id}-{sha256}"


def encode_name(name: str) -> str:
    """``name`` as one path segment. Most names come out as they went in."""
    if not name:
        raise InvalidInputError("a name must not be empty")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"name {name!r} holds a lone surrogate") from error
    if name in (".", ".."):
        return "%2E" * len(name)
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def decode_name(segment: str) -> str:
    """The name that ``encode_name`` made ``segment`` from."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{segment!r} is not an encoded name") from error


def _counted(number: int) -> str:
    if not 1 <= number < 10**12:
        raise InvalidInputError(f"ledger records are numbered from 1: {number}")
    return f"{number:012}"
