"""Moves on a local file system that survive a power cut. Nothing here knows what an epoch is.

A function that returned has made its effect durable. Invariants; the comments cite them:

D1  A file has its final name only once its bytes are synced.
D2  A name is given by ``link``, which refuses to replace what is there.
D3  A directory is synced after names in it changed, before anything relies on them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from holdfast.blobs.disk_errors import translated

_HASHED_AT_ONCE = 1 << 20
_AT_ONCE = 8

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Sealed:
    """What is known of a file's bytes."""

    size_bytes: int
    sha256: str


def make_directory(path: str) -> None:
    """``path``, with every missing directory above it, each synced into its parent."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(directory)
        # Also when a rival made it: its sync may still be to come, and we are about to rely on the name.
        sync_directory(os.path.dirname(directory))


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def seal_file(path: str) -> Sealed:
    """Sync the bytes of ``path`` and say what they are."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return _hashed(descriptor)
    finally:
        os.close(descriptor)


def look_at(path: str) -> Sealed:
    """What the bytes of ``path`` are. Raises FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _hashed(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: str, data: bytes) -> None:
    """Write ``data`` as ``path``, which must be free. Raises FileExistsError."""
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(temporary, path)
    finally:
        os.unlink(temporary)
    sync_directory(os.path.dirname(path))


def read(path: str) -> bytes:
    """The bytes of ``path``. Raises FileNotFoundError."""
    with open(path, "rb") as file:
        return file.read()


def names_in(path: str) -> list[str]:
    """The names in a directory, ascending; none when there is no such directory."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def files_below(path: str) -> Iterator[str]:
    """Files below ``path``, relative to it. What a rival removes meanwhile may or may not show."""
    pending = [""]
    while pending:
        relative = pending.pop()
        try:
            entries = sorted(os.scandir(os.path.join(path, relative)), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        for entry in entries:
            below = os.path.join(relative, entry.name)
            if entry.is_dir(follow_symlinks=False):
                pending.append(below)
            else:
                yield below


def directories_of(files: Iterable[str]) -> list[str]:
    """The directories that hold ``files``, and those above them, deepest first; ``""`` is the last."""
    found = {""}
    for file in files:
        directory = os.path.dirname(file)
        while directory not in found:
            found.add(directory)
            directory = os.path.dirname(directory)
    return sorted(found, key=lambda directory: (-len(directory.split(os.sep)), directory == "", directory))


def remove(path: str) -> None:
    """Remove a file; a missing one is fine. The caller syncs the directory."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Remove a directory and all below it. What a rival removes, or adds, meanwhile is no error."""
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(entry.path)
        else:
            remove(entry.path)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        # Not empty again: a task of a run that is over is still writing. The next sweep takes the rest.
        if error.errno != errno.ENOTEMPTY:
            raise


def side_by_side(work: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """``work`` for each item, a few at a time: most of it is waiting for the disk. Raises what one raised."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), thread_name_prefix="holdfast-disk") as pool:
        return list(pool.map(work, items))


@contextmanager
def errors_of(root: str, doing: str) -> Iterator[None]:
    """Turn what the operating system says into what the caller does next."""
    try:
        yield
    except OSError as error:
        what = os.path.relpath(error.filename, root) if isinstance(error.filename, str) else "files"
        raise translated(error, doing, what, root) from error


def _hashed(descriptor: int) -> Sealed:
    digest = hashlib.sha256()
    size = 0
    while chunk := os.pread(descriptor, _HASHED_AT_ONCE, size):
        digest.update(chunk)
        size += len(chunk)
    return Sealed(size, digest.hexdigest())
