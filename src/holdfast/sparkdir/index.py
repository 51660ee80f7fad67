"""What is held: path → size and SHA-256. The memory of a chain of captures, in one small document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from holdfast.errors import CorruptError

#: The one entry of a log artifact that is ours and not Spark's.
INDEX_PATH = "holdfast/files.json"


class FileEntry(NamedTuple):
    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> FileEntry:
        return cls(len(data), hashlib.sha256(data).hexdigest())


FileIndex: TypeAlias = Mapping[str, FileEntry]


def encode_index(files: FileIndex) -> bytes:
    document = {"files": {path: [entry.size, entry.sha256] for path, entry in sorted(files.items())}}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decode_index(data: bytes, key: str) -> dict[str, FileEntry]:
    """Raises CorruptError for anything that ``encode_index`` does not write."""
    try:
        files = json.loads(data)["files"]
        return {str(path): FileEntry(int(size), str(sha256)) for path, (size, sha256) in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptError(key, f"{INDEX_PATH} is not readable: {error!r}") from error
