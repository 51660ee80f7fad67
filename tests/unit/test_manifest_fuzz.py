"""Mutated manifests: typed errors or a sound value, nothing else, and no memory to speak of.

``HOLDFAST_FUZZ=200000`` makes a long run of it; the seed is printed.
"""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.errors import CorruptError, InvalidInputError, UnsupportedFormatError
from holdfast.manifest import CheckpointManifest, CheckpointManifestV2
from holdfast.manifest.v2 import read_sealed

GOLDEN = Path(__file__).parent.parent / "format" / "golden"
ROUNDS = int(os.environ.get("HOLDFAST_FUZZ", "8000"))
PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"-0",
    b"1e999",
    b"NaN",
    b"\\ud800",
    b"\xff",
    b"\x00",
]
PIECES += [b"18446744073709551616", b'{"Failed":1}', b"\xef\xbb\xbf", b"[" * 2000, b'"a":1,"a":1', b"9" * 400]

Parse = Callable[[bytes], object]


def mutated(data: bytes, choose: random.Random) -> bytes:
    """One to three changes: a flip, a cut, a repeat, a piece that hurts, two keys swapped."""
    for _ in range(choose.randint(1, 3)):
        at, to = sorted((choose.randrange(len(data) + 1), choose.randrange(len(data) + 1)))
        kind = choose.randrange(6)
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[to:]
        elif kind == 2:
            data = data[:to] + data[at : min(to, at + 500)] + data[to:]
        elif kind == 3:
            data = data[:at] + choose.choice(PIECES) + data[at:]
        elif kind == 4:
            data = data[:at] + choose.choice(PIECES) + data[to:]
        else:
            data = data[:at]
    return data


@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("manifest-v1-full.json", CheckpointManifest.from_json),
        ("manifest-v1-foreign.json", CheckpointManifest.from_json),
        ("manifest-v2-full.json", lambda data: read_sealed(data, "m")),
        ("manifest-v2-full.json", CheckpointManifestV2.from_json),
        ("manifest-v2-foreign.json", lambda data: read_sealed(data, "m")),
    ],
)
def test_a_mutated_manifest_is_refused_by_type_or_sound(name: str, parse: Parse) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    sound = (GOLDEN / name).read_bytes()
    read = 0

    tracemalloc.start()
    try:
        for _ in range(ROUNDS // 5):
            try:
                value = parse(mutated(sound, choose))
            except (CorruptError, UnsupportedFormatError):
                continue
            read += 1
            assert isinstance(value, CheckpointManifest | CheckpointManifestV2)
            # Somebody else may have put a float where any JSON goes. That is read, and never written.
            with suppress(InvalidInputError):
                value.to_json()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert read < ROUNDS // 5, "the mutations change nothing"
    assert peak < 8 * 1024 * 1024
