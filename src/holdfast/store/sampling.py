"""Which part of a store an object falls into, so that a look at each part in turn has seen every object once.

By the hash of its key: what comes and goes in between moves no other object into another part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from holdfast.errors import InvalidInputError


def one_part(number: int, of: int) -> Callable[[str], bool]:
    """Says of a key whether it is in part ``number`` (from 1) of ``of`` parts."""
    if not 1 <= number <= of:
        raise InvalidInputError(f"there is no part {number} of {of}")

    def chosen(key: str) -> bool:
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % of == number - 1

    return chosen
