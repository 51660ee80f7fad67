"""Names for what a sink stages: whose it is, and of which attempt. Nothing here touches a disk or a database.

Staged output is keyed by flow and sink, then by generation, epoch and id (I6), and the names can
be read back: a later start finds in them what it may drop.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from holdfast.coordinator.sink import Epoch, SinkFlow
from holdfast.errors import InvalidInputError
from holdfast.ids import CheckpointId

_DIRECTORY = re.compile(r"([0-9]{12,})-([0-9]{12,})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_TABLE = re.compile(r"_hf_[0-9a-f]{10}_([0-9a-z]+)_([0-9a-z]+)_([a-z2-7]{26})_[0-9]+_?")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

# PostgreSQL cuts identifiers after 63 bytes, without a word.
_MAX_IDENTIFIER = 63


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt that a staged name belongs to."""

    generation: int
    number: int
    id: CheckpointId

    @classmethod
    def of(cls, epoch: Epoch) -> Attempt:
        return cls(epoch.generation, epoch.number, epoch.id)


def owner_directory(flow: SinkFlow) -> str:
    """A directory name of this flow's sink alone: readable in front, unique behind."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", ".", f"{flow.flow}.{flow.sink}").strip(".")[:100]
    return f"{readable}-{_digest(flow)[:16]}"


def attempt_directory(attempt: Attempt) -> str:
    return f"{attempt.generation:012}-{attempt.number:012}-{attempt.id}"


def parse_directory(name: str) -> Attempt | None:
    """The attempt of a directory name, or None if it is not one of ours."""
    matched = _DIRECTORY.fullmatch(name)
    if matched is None:
        return None
    return Attempt(int(matched[1]), int(matched[2]), CheckpointId.parse(matched[3]))


def table_prefix(flow: SinkFlow) -> str:
    """What the staging tables of this flow's sink start with, and no other's."""
    return f"_hf_{_digest(flow)[:10]}_"


def attempt_tables(flow: SinkFlow, attempt: Attempt) -> str:
    """What the names of an attempt's staging tables start with; the part follows."""
    id = base64.b32encode(attempt.id.as_uuid().bytes).decode().rstrip("=").lower()
    return f"{table_prefix(flow)}{_short(attempt.generation)}_{_short(attempt.number)}_{id}_"


def part_table(flow: SinkFlow, attempt: Attempt, part: int) -> str:
    """The staging table of one micro-batch; with one more ``_`` behind it, the table it is loaded into."""
    name = f"{attempt_tables(flow, attempt)}{part}"
    if len(name) >= _MAX_IDENTIFIER:
        raise InvalidInputError(
            f"part {part} of epoch {attempt.number} of generation {attempt.generation} "
            "makes no table name that fits"
        )
    return name


def parse_table(name: str) -> Attempt | None:
    """The attempt of a staging table's name, or None if it is not one of ours."""
    matched = _TABLE.fullmatch(name)
    if matched is None:
        return None
    number = int.from_bytes(base64.b32decode(matched[3].upper() + "======"), "big")
    return Attempt(int(matched[1], 36), int(matched[2], 36), CheckpointId(number))


def _short(number: int) -> str:
    """To base 36: seven digits outlast any flow."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


def _digest(flow: SinkFlow) -> str:
    # NUL is in neither name, so no two pairs make the same text.
    return hashlib.sha256(f"{flow.flow}\0{flow.sink}".encode()).hexdigest()
