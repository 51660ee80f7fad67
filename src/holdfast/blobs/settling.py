"""What became of a create whose reply was lost: read back and compare."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from holdfast.blobs.base import BlobStore
from holdfast.errors import KeyNotFoundError, OutcomeUnknownError, StoreUnavailableError


class Settled(Enum):
    OURS = "the key holds our bytes"
    TAKEN = "the key holds other bytes"
    MISSING = "nothing is there, yet: a request under way may still land"
    UNREADABLE = "the store does not answer"


def settle(blobs: BlobStore, key: str, pieces: Sequence[memoryview]) -> Settled:
    """Whose bytes ``key`` holds.

    Equal bytes count as ours. Where it matters who wrote them, they hold the name of their writer.
    """
    try:
        found = memoryview(blobs.get(key))
    except KeyNotFoundError:
        return Settled.MISSING
    except (StoreUnavailableError, OutcomeUnknownError):
        return Settled.UNREADABLE
    return Settled.OURS if _equal(found, pieces) else Settled.TAKEN


def _equal(found: memoryview, pieces: Sequence[memoryview]) -> bool:
    position = 0
    for piece in pieces:
        if found[position : position + len(piece)] != piece:
            return False
        position += len(piece)
    return position == len(found)
