"""XXH32, the checksum that lz4-java puts on each block. In plain Python: right, not fast (about 1 MB/s)."""

from __future__ import annotations

import struct

# lz4-java's seed, and it keeps 28 bits.
XXH_SEED, XXH_KEPT = 0x9747_B28C, 0x0FFF_FFFF

_STRIPE = struct.Struct("<4I")
_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_MASK = 0xFFFF_FFFF


def xxh32(data: bytes, seed: int) -> int:
    """The hash of ``data``, 32 bits."""
    p1, p2, p3, p4, p5 = _PRIMES
    whole = len(data) & ~15
    if whole:
        lanes = [(seed + p1 + p2) & _MASK, (seed + p2) & _MASK, seed, (seed - p1) & _MASK]
        for stripe in _STRIPE.iter_unpack(data[:whole]):
            for i in range(4):
                lane = (lanes[i] + stripe[i] * p2) & _MASK
                lanes[i] = (((lane << 13) | (lane >> 19)) * p1) & _MASK
        mixed = sum(_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        mixed = seed + p5
    mixed = (mixed + len(data)) & _MASK
    tail = data[whole:]
    for at in range(0, len(tail) & ~3, 4):
        mixed = _rotated((mixed + int.from_bytes(tail[at : at + 4], "little") * p3) & _MASK, 17) * p4 & _MASK
    for byte in tail[len(tail) & ~3 :]:
        mixed = _rotated((mixed + byte * p5) & _MASK, 11) * p1 & _MASK
    mixed = (mixed ^ (mixed >> 15)) * p2 & _MASK
    mixed = (mixed ^ (mixed >> 13)) * p3 & _MASK
    return mixed ^ (mixed >> 16)


def _rotated(value: int, turn: int) -> int:
    return ((value << turn) | (value >> (32 - turn))) & _MASK
