"""Every state that a disk may be in after a crash, as POSIX allows it.

Built from recorded system calls. Until its directory is synced, each name may hold any value it ever had
since the last sync, independently of every other name, a rename being two names. Until its file is synced,
written data may be missing, cut, or zeros, the later write there without the earlier one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, Union

from holdfast.blobs.base import TEMPORARY_PREFIX
from holdfast.testing.disk import DiskCall


@dataclass(eq=False)
class File:
    synced: bytes = b""
    pending: list[bytes] = field(default_factory=list)

    def contents(self) -> list[bytes]:
        """What a crash may leave. The whole of it is always among them."""
        if not self.pending:
            return [self.synced]
        whole = b"".join([self.synced, *self.pending])
        found = [
            whole,
            self.synced,
            whole[: len(whole) // 2],
            self.synced + bytes(len(whole) - len(self.synced)),
        ]
        for number in range(1, len(self.pending)):
            before = b"".join(self.pending[:number])
            after = b"".join(self.pending[number:])
            found += [self.synced + before, self.synced + bytes(len(before)) + after]
        return list(dict.fromkeys(found))


Entry: TypeAlias = Union[File, "Directory", None]


@dataclass(eq=False)
class Directory:
    now: dict[str, Entry] = field(default_factory=dict)
    #: For each name that changed since the last sync: what it was then, and everything since.
    unsynced: dict[str, list[Entry]] = field(default_factory=dict)

    def set(self, name: str, entry: Entry) -> None:
        self.unsynced.setdefault(name, [self.now.get(name)]).append(entry)
        self.now[name] = entry

    def sync(self) -> None:
        self.unsynced.clear()


#: What lies on a disk: files by path, and the directories, since an empty one may be in the way.
DiskState: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Disk:
    def __init__(self) -> None:
        self.root = Directory()
        self._by_inode: dict[int, File] = {}

    def apply(self, call: DiskCall) -> None:
        """What ``call``, which succeeded, did."""
        if call.name == "mkdir":
            self._set(call.path, Directory())
        elif call.name == "open" and TEMPORARY_PREFIX in call.path:
            self._by_inode[call.inode] = File()
            self._set(call.path, self._by_inode[call.inode])
        elif call.name == "write":
            self._by_inode[call.inode].pending.append(call.data)
        elif call.name == "fsync":
            self._sync(call)
        elif call.name == "link":
            assert call.to is not None
            self._set(call.to, self._get(call.path))
        elif call.name == "rename":
            assert call.to is not None
            self._set(call.to, self._get(call.path))
            self._set(call.path, None)
        elif call.name in ("unlink", "rmdir"):
            self._set(call.path, None)

    def states(self) -> Iterator[DiskState]:
        """Each state that a crash at this moment may leave, once."""
        seen = set()
        for state in self._expand(self.root, ""):
            if state not in seen:
                seen.add(state)
                yield state

    def _expand(self, directory: Directory, path: str) -> Iterator[DiskState]:
        names = sorted(name for name in {*directory.now, *directory.unsynced})
        choices = []
        for name in names:
            entries = dict.fromkeys(directory.unsynced.get(name, [directory.now.get(name)]))
            choices.append([state for entry in entries for state in self._materialised(entry, path + name)])
        for combination in itertools.product(*choices):
            yield tuple(itertools.chain.from_iterable(combination))

    def _materialised(self, entry: Entry, path: str) -> list[DiskState]:
        if entry is None:
            return [()]
        if isinstance(entry, File):
            return [((path, content),) for content in entry.contents()]
        return [((path, None), *inside) for inside in self._expand(entry, path + "/")]

    def _sync(self, call: DiskCall) -> None:
        if TEMPORARY_PREFIX in call.path:
            file = self._by_inode[call.inode]
            file.synced = b"".join([file.synced, *file.pending])
            file.pending.clear()
            return
        found = self.root if call.path == "." else self._get(call.path)
        if isinstance(found, Directory):
            found.sync()

    def _get(self, path: str) -> Entry:
        directory, name = self._parent(path)
        return directory.now.get(name)

    def _set(self, path: str, entry: Entry) -> None:
        directory, name = self._parent(path)
        directory.set(name, entry)

    def _parent(self, path: str) -> tuple[Directory, str]:
        directory = self.root
        *above, name = path.split("/")
        for part in above:
            found = directory.now[part]
            assert isinstance(found, Directory)
            directory = found
        return directory, name


def build(state: DiskState, root: Path) -> None:
    root.mkdir()
    for path, content in state:
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
