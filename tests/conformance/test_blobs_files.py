"""FileBlobs keeps the contract. Its oddities are in tests/unit/test_files_*."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from holdfast.blobs.files import FileBlobs
from holdfast.testing import BlobSuite
from holdfast.testing.blob_suite import ORDERED_KEYS


class TestFileBlobs(BlobSuite):
    # A name is a file or a directory, so of "a" and "a/b" a file system holds one.
    ORDERED: ClassVar[list[str]] = [
        key for key in ORDERED_KEYS if not any(other.startswith(key + "/") for other in ORDERED_KEYS)
    ]

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> FileBlobs:
        return FileBlobs(tmp_path / "store")
