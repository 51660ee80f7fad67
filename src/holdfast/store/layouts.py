"""Where a v1 store keeps its files. Nothing here reads a manifest.

FileLayout      checkpoints/checkpoint_000042/manifest.json, state.bin      checkpoints/latest.txt
ObjectLayout    manifests/manifest-000042.json, manifests/latest.json       checkpoints/state-000042.bin
                and, to read only, everything of FileLayout below the same prefix
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Final

from holdfast.blobs.base import BlobStore
from holdfast.errors import InvalidInputError, KeyNotFoundError

MAX_ID: Final = 2**64 - 1


class NumberedLayout(ABC):
    """Keys of numbered checkpoints. The first of several keys is the one that is written."""

    #: What to list to see every file of a store.
    prefixes: tuple[str, ...]
    pointer: str

    @abstractmethod
    def manifest_keys(self, number: int) -> tuple[str, ...]: ...

    @abstractmethod
    def state_keys(self, number: int) -> tuple[str, ...]: ...

    @abstractmethod
    def manifest_number(self, key: str) -> int | None:
        """Whose manifest ``key`` is; None for everything else, and for a number spelled in another way."""

    @abstractmethod
    def state_number(self, key: str) -> int | None:
        """Whose sidecar ``key`` is."""

    @abstractmethod
    def encode_pointer(self, number: int) -> bytes: ...

    @abstractmethod
    def read_pointer(self, blobs: BlobStore) -> int | None:
        """The number the pointer names; None if it is missing or garbage."""


class FileLayout(NumberedLayout):
    """One directory a checkpoint, below ``checkpoints/``."""

    def __init__(self, prefix: str = "") -> None:
        self._base = f"{check_layout_prefix(prefix)}checkpoints/"
        self.prefixes = (self._base,)
        self.pointer = f"{self._base}latest.txt"
        self._name = re.compile(
            rf"{re.escape(self._base)}checkpoint_([0-9]{{6,20}})/(manifest\.json|state\.bin)"
        )

    def manifest_keys(self, number: int) -> tuple[str, ...]:
        return (f"{self._base}checkpoint_{number:06}/manifest.json",)

    def state_keys(self, number: int) -> tuple[str, ...]:
        return (f"{self._base}checkpoint_{number:06}/state.bin",)

    def manifest_number(self, key: str) -> int | None:
        return self._number(key, "manifest.json")

    def state_number(self, key: str) -> int | None:
        return self._number(key, "state.bin")

    def encode_pointer(self, number: int) -> bytes:
        return f"checkpoint_{number:06}".encode()

    def read_pointer(self, blobs: BlobStore) -> int | None:
        try:
            text = blobs.get(self.pointer).decode().strip()
        except (KeyNotFoundError, UnicodeDecodeError):
            return None
        matched = re.fullmatch(r"checkpoint_([0-9]{1,20})", text, re.ASCII)
        return _checked(matched[1]) if matched else None

    def _number(self, key: str, name: str) -> int | None:
        matched = self._name.fullmatch(key)
        if matched is None or matched[2] != name:
            return None
        number = _checked(matched[1])
        # 0000042 and 42 are other files than the ones that reading 42 would open.
        return number if number is not None and matched[1] == f"{number:06}" else None


class ObjectLayout(NumberedLayout):
    """Manifests side by side, sidecars elsewhere; reads the layout of ``FileLayout`` as well."""

    def __init__(self, prefix: str = "") -> None:
        check_layout_prefix(prefix)
        self._older = FileLayout(prefix)
        self._manifests = f"{prefix}manifests/"
        self._states = f"{prefix}checkpoints/"
        self.prefixes = (self._manifests, self._states)
        self.pointer = f"{self._manifests}latest.json"
        self._manifest = re.compile(rf"{re.escape(self._manifests)}manifest-([0-9]{{6,20}})\.json")
        self._state = re.compile(rf"{re.escape(self._states)}state-([0-9]{{6,20}})\.bin")

    def manifest_keys(self, number: int) -> tuple[str, ...]:
        return (f"{self._manifests}manifest-{number:06}.json", *self._older.manifest_keys(number))

    def state_keys(self, number: int) -> tuple[str, ...]:
        return (f"{self._states}state-{number:06}.bin", *self._older.state_keys(number))

    def manifest_number(self, key: str) -> int | None:
        number = _matched(self._manifest, key)
        return number if number is not None else self._older.manifest_number(key)

    def state_number(self, key: str) -> int | None:
        number = _matched(self._state, key)
        return number if number is not None else self._older.state_number(key)

    def encode_pointer(self, number: int) -> bytes:
        return b'{"checkpoint_id":%d}' % number

    def read_pointer(self, blobs: BlobStore) -> int | None:
        try:
            document = json.loads(blobs.get(self.pointer))
        except KeyNotFoundError:
            # The older pointer counts only while ours was never written.
            return self._older.read_pointer(blobs)
        except (ValueError, RecursionError):
            return None
        number = document.get("checkpoint_id") if isinstance(document, dict) else None
        return number if type(number) is int and 0 < number <= MAX_ID else None


def check_layout_prefix(prefix: str) -> str:
    if prefix and not prefix.endswith("/"):
        raise InvalidInputError(f"the prefix {prefix!r} must be empty or end with a slash")
    return prefix


def _matched(pattern: re.Pattern[str], key: str) -> int | None:
    matched = pattern.fullmatch(key)
    number = _checked(matched[1]) if matched else None
    return number if matched and number is not None and matched[1] == f"{number:06}" else None


def _checked(digits: str) -> int | None:
    number = int(digits)
    return number if 0 < number <= MAX_ID else None
