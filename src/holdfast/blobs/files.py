"""Blobs as plain files under one directory, durable when a call returns.

Invariants; tests cite the numbers:

F1  A key's file is complete and synced before it has its name. Nothing is ever written in place.
F2  ``create`` gives the name with ``link``, which refuses to replace; ``put`` with ``rename``.
F3  When a write returns, its name is synced too: in its directory, and every directory above up to the root.
F4  After a failed fsync the file is given up, never synced again: the kernel may have dropped its pages
    and would call the second try a success.
F5  A failure before the name is given is a plain failure; after it, the outcome is unknown.
F6  Files under a temporary name belong to nobody's store. They are never listed, and swept when old.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.blobs.base import (
    TEMPORARY_PREFIX,
    BlobInfo,
    BlobStore,
    Data,
    check_key,
    check_prefix,
    check_range,
    chunks,
    is_key,
)
from holdfast.blobs.disk_errors import translated
from holdfast.blobs.folding import check_spelling, folds_case
from holdfast.blobs.walking import walk_keys, walk_leftovers
from holdfast.errors import (
    HoldfastError,
    InvalidInputError,
    KeyExistsError,
    KeyNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

# How often a write makes its directory again when somebody removes it, empty, at that very moment.
_DIRECTORY_ATTEMPTS = 20


class FileBlobs(BlobStore):
    """The store at ``root``. The directory is made by the first write."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        path = os.fspath(root)
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidInputError(f"the root of a store is a path, not {root!r}")
        # Absolute from here on: a later chdir moves no store.
        self._root = os.path.abspath(path)
        self._root_seen = False
        # Asked once, as soon as there is a root to ask about.
        self._folding: bool | None = None
        # Directories known to be reachable after a crash. With their inode: one made again is another one.
        self._synced: dict[str, tuple[int, int]] = {}

    @property
    def root(self) -> Path:
        return Path(self._root)

    def get(self, key: str) -> bytes:
        with self._reading(key) as descriptor:
            return _read_all(descriptor, os.fstat(descriptor).st_size)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        with self._reading(key) as descriptor:
            # Never more than is there: a length that comes from a damaged header must not size a buffer.
            remaining = max(0, min(length, os.fstat(descriptor).st_size - start))
            return _read_all(descriptor, remaining, start)

    def head(self, key: str) -> BlobInfo | None:
        path = self._path(key)
        try:
            found = _stat(path)
        except OSError as error:
            raise self._translated(error, "looking at", key) from error
        if found is None:
            self._check_root()
            return None
        return _info(key, found) if stat.S_ISREG(found.st_mode) else None

    def create(self, key: str, data: Data) -> None:
        path = self._path(key)
        with self._unfinished(key, path, data, "creating") as (directory, temporary):
            try:
                # link, not rename: rename replaces an existing file, link refuses to.
                os.link(temporary, path)
            except OSError as error:
                self._after_failed_link(error, key, path, temporary, directory)
            with self._outcome_unknown(key, "creating"):
                os.unlink(temporary)
                os.fsync(directory)

    def put(self, key: str, data: Data) -> None:
        path = self._path(key)
        with self._unfinished(key, path, data, "writing") as (directory, temporary):
            try:
                os.rename(temporary, path)
            except OSError as error:
                _discard(temporary)
                raise self._translated(error, "writing", key) from error
            with self._outcome_unknown(key, "writing"):
                os.fsync(directory)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobInfo]:
        check_prefix(prefix)
        return self._listed(prefix, start_after or "")

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            directory = os.open(os.path.dirname(path), _DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            return
        except OSError as error:
            raise self._translated(error, "deleting", key) from error
        try:
            if not os.path.isdir(path):
                with suppress(FileNotFoundError):
                    os.unlink(path)
            # Also when nothing was there: a rival may have removed it, and what we call gone must stay gone.
            os.fsync(directory)
        except OSError as error:
            raise self._translated(error, "deleting", key) from error
        finally:
            os.close(directory)
        self._remove_empty(os.path.dirname(path))

    def sweep_leftovers(self, *, min_age_seconds: float) -> int:
        """Remove temporary files that nobody has written to for that long.

        A writer that was asleep and comes back finds its file gone: its create fails before the
        name is given, so nothing is lost but the attempt.
        """
        newest = time.time() - min_age_seconds
        removed = 0
        try:
            for path in walk_leftovers(self._root):
                with suppress(FileNotFoundError):
                    if os.lstat(path).st_mtime <= newest:
                        os.unlink(path)
                        removed += 1
        except OSError as error:
            raise self._translated(error, "sweeping", ".") from error
        return removed

    def __repr__(self) -> str:
        return f"FileBlobs({self._root!r})"

    def __reduce__(self) -> tuple[type[FileBlobs], tuple[str]]:
        # What this process knows to be synced says nothing to another one.
        return FileBlobs, (self._root,)

    # -- reading

    def _path(self, key: str) -> str:
        check_key(key)
        if self._folds_case():
            try:
                check_spelling(self._root, key)
            except OSError as error:
                raise self._translated(error, "looking at", key) from error
        return f"{self._root}/{key}"

    def _folds_case(self) -> bool:
        if self._folding is None and os.path.isdir(self._root):
            self._folding = folds_case(self._root)
        return bool(self._folding)

    @contextmanager
    def _reading(self, key: str) -> Iterator[int]:
        path = self._path(key)
        try:
            # O_NONBLOCK: a pipe that somebody put there must not hang us.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError) as error:
            self._check_root()
            raise KeyNotFoundError(key) from error
        except OSError as error:
            raise self._translated(error, "reading", key) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise KeyNotFoundError(key)
            self._root_seen = True
            yield descriptor
        except OSError as error:
            raise self._translated(error, "reading", key) from error
        finally:
            os.close(descriptor)

    def _listed(self, prefix: str, start_after: str) -> Iterator[BlobInfo]:
        self._check_root()
        try:
            for key in walk_keys(self._root, prefix, start_after):
                found = _stat(f"{self._root}/{key}") if is_key(key) else None
                if found is not None and stat.S_ISREG(found.st_mode):
                    yield _info(key, found)
        except OSError as error:
            raise self._translated(error, "listing", prefix) from error
        # A disk that went away half-way must not read as the end of the list.
        self._check_root()

    def _check_root(self) -> None:
        """Something is missing. Make sure it is not the whole store: an unmounted disk has lost nothing."""
        try:
            found = os.stat(self._root)
        except FileNotFoundError as error:
            if self._root_seen:
                raise self._root_is_gone() from error
            return
        except OSError as error:
            raise self._translated(error, "looking at", ".") from error
        if not stat.S_ISDIR(found.st_mode):
            raise InvalidInputError(f"the store's root {self._root} is not a directory")
        self._root_seen = True

    def _root_is_gone(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"the store's root {self._root} is gone").with_hint(
            "is the disk still mounted?"
        )

    # -- writing

    @contextmanager
    def _unfinished(self, key: str, path: str, data: Data, doing: str) -> Iterator[tuple[int, str]]:
        """The open directory of ``path``, and in it a synced file with ``data``, not named yet (F1)."""
        pieces = chunks(data)
        try:
            directory, temporary, descriptor = self._open_beside(path)
        except OSError as error:
            raise self._translated(error, doing, key) from error
        try:
            try:
                _write_and_sync(descriptor, pieces)
            except BaseException as error:
                # F4: this file is given up. What is left of it, if it can't even be removed, is swept later.
                _discard(temporary)
                if isinstance(error, OSError):
                    raise self._translated(error, doing, key) from error
                raise
            yield directory, temporary
        finally:
            os.close(directory)

    def _open_beside(self, path: str) -> tuple[int, str, int]:
        """The directory of ``path``, made if need be, and a new file in it that no other attempt ever uses.

        The directory is opened first: with too many open files a write must fail, not end in doubt.
        """
        parent = os.path.dirname(path)
        temporary = f"{parent}/{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        attempt = 0
        while True:
            try:
                self._make_durable(parent)
                directory = os.open(parent, _DIRECTORY)
                try:
                    return directory, temporary, os.open(temporary, _NEW_FILE, 0o666)
                except BaseException:
                    os.close(directory)
                    raise
            except FileNotFoundError:
                # Somebody removed the directory, empty as it was, between these lines.
                attempt += 1
                if attempt == _DIRECTORY_ATTEMPTS:
                    raise

    def _make_durable(self, directory: str) -> None:
        """Make ``directory``, and see to it that a crash leaves it reachable (F3).

        One that is there already may be a rival's, not synced yet: the first use of each syncs its parents.
        """
        known = self._synced.get(directory)
        if known is not None:
            with suppress(FileNotFoundError):
                if known == _inode_of(directory):
                    return
        if directory == self._root:
            self._make_root()
            return
        parent = os.path.dirname(directory)
        self._make_durable(parent)
        with suppress(FileExistsError):
            os.mkdir(directory)
        inode = _inode_of(directory)
        _sync_directory(parent)
        self._synced[directory] = inode

    def _make_root(self) -> None:
        # Asked before looking: a rival thread may make the root, and see it, right after we missed it.
        seen_before = self._root_seen
        missing: list[str] = []
        path = self._root
        while not _is_directory(path):
            missing.append(path)
            path = os.path.dirname(path)
        if missing and seen_before:
            raise self._root_is_gone()
        for each in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(each)
            _sync_directory(os.path.dirname(each))
        self._synced[self._root] = _inode_of(self._root)
        self._root_seen = True

    def _after_failed_link(self, error: OSError, key: str, path: str, temporary: str, directory: int) -> None:
        """Return if the name was given to our file after all; raise what is known otherwise.

        A network file system may do the link, lose the answer, and call its own repetition a collision.
        """
        try:
            ours = os.stat(temporary).st_nlink > 1
        except FileNotFoundError:
            raise StoreUnavailableError(
                f"creating {key!r} in {self._root}: the unfinished file was swept away; nothing was created"
            ) from error
        except OSError as blind:
            raise _unproven(f"creating {key!r} in {self._root}: {error.strerror}") from blind
        if ours:
            return
        _discard(temporary)
        if not isinstance(error, FileExistsError):
            raise self._translated(error, "creating", key) from error
        if os.path.isdir(path):
            raise self._translated(OSError(errno.EISDIR, "is a directory"), "creating", key) from error
        # The winner may not have synced its name yet, and the caller now builds on its being there.
        with self._outcome_unknown(key, "creating"):
            os.fsync(directory)
        raise KeyExistsError(key) from None

    def _remove_empty(self, directory: str) -> None:
        """Directories are how we keep keys, not something that anybody asked for: empty ones go."""
        while directory != self._root:
            try:
                os.rmdir(directory)
            except OSError:
                # Not empty, or gone, or not ours to remove: the object itself is deleted all the same.
                return
            self._synced.pop(directory, None)
            directory = os.path.dirname(directory)

    @contextmanager
    def _outcome_unknown(self, key: str, doing: str) -> Iterator[None]:
        """The name is given: whatever fails now, readers may see the object, today or after a crash (F5)."""
        try:
            yield
        except OSError as error:
            raise _unproven(
                f"{doing} {key!r} in {self._root}: the disk did not confirm it: {error.strerror}"
            ).with_hint(
                "end this process and look at the disk; reading back in this process proves nothing"
            ) from error

    def _translated(self, error: OSError, doing: str, key: str) -> HoldfastError:
        return translated(error, doing, key, self._root)


def _unproven(message: str) -> OutcomeUnknownError:
    error = OutcomeUnknownError(message)
    error.proven_by_reading = False
    return error


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, _DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_directory(path: str) -> bool:
    """Whether ``path`` is a directory; False if nothing is there. A file there, or above, is in the way."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise InvalidInputError(f"{path} can't be made: it lies below a file") from error
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidInputError(f"{path} can't hold a store: it is not a directory")
    return True


def _inode_of(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _info(key: str, found: os.stat_result) -> BlobInfo:
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return BlobInfo(key=key, size=found.st_size, modified_ms=found.st_mtime_ns // 1_000_000, etag=etag)


def _read_all(descriptor: int, size: int, start: int | None = None) -> bytes:
    """``size`` bytes, or those up to the end. One read, and one buffer, wherever the system allows it."""
    parts: list[bytes] = []
    position = start or 0
    while size > 0:
        part = os.read(descriptor, size) if start is None else os.pread(descriptor, size, position)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        position += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write_and_sync(descriptor: int, pieces: Sequence[memoryview]) -> None:
    try:
        for piece in pieces:
            written = 0
            while written < len(piece):
                written += os.write(descriptor, piece[written:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(temporary: str) -> None:
    with suppress(OSError):
        os.unlink(temporary)
