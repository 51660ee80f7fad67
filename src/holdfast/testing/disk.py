"""The system calls that a file store makes, recorded, and failing as told. For one directory of this process.

Not a fake file system: every call is a real one, unless it was told to fail.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: What is watched: the calls that change a disk or make a change durable, and those that look at it.
CHANGES = ("mkdir", "open", "write", "fsync", "link", "rename", "unlink", "rmdir")
LOOKS = ("stat", "lstat", "fstat", "read", "pread", "scandir")

_BY_DESCRIPTOR = ("write", "fsync", "fstat", "read", "pread")


@dataclass(frozen=True, slots=True)
class DiskCall:
    """One call. Paths are relative to the watched directory, which itself is ``.``."""

    name: str
    path: str
    to: str | None = None
    data: bytes = b""
    inode: int = 0
    failed: bool = False


@dataclass(slots=True)
class _Fault:
    name: str
    error: int
    skip: int
    times_left: int | None
    takes_effect: bool


class WatchedDisk:
    """Made by ``watched_disk``. ``calls`` grows while the code under test works."""

    def __init__(self, root: str) -> None:
        self.calls: list[DiskCall] = []
        self._root = os.path.abspath(root)
        self._descriptors: dict[int, str] = {}
        self._faults: list[_Fault] = []
        self._lock = threading.RLock()
        self._real: dict[str, Callable[..., Any]] = {
            name: getattr(os, name) for name in (*CHANGES, *LOOKS, "close")
        }

    def fail(
        self, name: str, error: int, *, skip: int = 0, times: int | None = 1, takes_effect: bool = False
    ) -> None:
        """Let ``name`` raise ``OSError(error)`` ``times`` times (None: for good), but not the first ``skip``.

        With ``takes_effect`` the call does its work first, as on a network file system that loses an answer.
        """
        self._faults.append(_Fault(name, error, skip, times, takes_effect))

    def changes(self) -> list[DiskCall]:
        """Calls that change the disk or sync it, without those that failed."""
        return [call for call in self.calls if call.name in CHANGES and not call.failed]

    def names(self) -> list[str]:
        return [call.name for call in self.changes()]

    def _install(self) -> None:
        for name in (*CHANGES, *LOOKS, "close"):
            setattr(os, name, self._watching(name))

    def _restore(self) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _watching(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            path = self._path(name, args)
            if path is None:
                return real(*args, **kwargs)
            if name == "close":
                self._descriptors.pop(args[0], None)
                return real(*args, **kwargs)
            return self._call(name, path, real, args, kwargs)

        return call

    def _call(
        self, name: str, path: str, real: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with self._lock:
            to = self._relative(args[1]) if name in ("link", "rename") else None
            data = bytes(args[1]) if name == "write" else b""
            inode = self._real["fstat"](args[0]).st_ino if name in _BY_DESCRIPTOR else 0
            fault = self._next_fault(name)
            failing = DiskCall(name, path, to, data, inode, failed=True)
            if fault is not None and not fault.takes_effect:
                self.calls.append(failing)
                raise OSError(fault.error, os.strerror(fault.error))
            try:
                result = real(*args, **kwargs)
            except OSError:
                self.calls.append(failing)
                raise
            if name == "open":
                self._descriptors[result] = path
                inode = self._real["fstat"](result).st_ino
            if name == "write":
                data = data[:result]
            self.calls.append(DiskCall(name, path, to, data, inode))
            if fault is not None:
                raise OSError(fault.error, os.strerror(fault.error))
            return result

    def _next_fault(self, name: str) -> _Fault | None:
        for fault in self._faults:
            if fault.name != name or fault.times_left == 0:
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            if fault.times_left is not None:
                fault.times_left -= 1
            return fault
        return None

    def _path(self, name: str, args: tuple[Any, ...]) -> str | None:
        if name in _BY_DESCRIPTOR or name == "close":
            return self._descriptors.get(args[0])
        return self._relative(args[0]) if args else None

    def _relative(self, path: Any) -> str | None:
        """``path`` as seen from the watched directory, or None if it lies elsewhere."""
        if not isinstance(path, str | os.PathLike):
            return None
        absolute = os.path.abspath(os.fspath(path))
        if absolute == self._root:
            return "."
        return absolute[len(self._root) + 1 :] if absolute.startswith(self._root + "/") else None


@contextmanager
def watched_disk(root: str | os.PathLike[str]) -> Iterator[WatchedDisk]:
    """Watch what this process does below ``root``. One at a time; not for code that is measured."""
    disk = WatchedDisk(os.fspath(root))
    disk._install()
    try:
        yield disk
    finally:
        disk._restore()
