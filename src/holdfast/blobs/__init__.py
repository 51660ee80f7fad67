"""Bytes by key: the contract, and the stores that keep it."""

from holdfast.blobs.base import BlobInfo, BlobStore, check_key
from holdfast.blobs.files import FileBlobs
from holdfast.blobs.memory import MemoryBlobs
from holdfast.blobs.opening import open_blobs
from holdfast.blobs.prefixed import PrefixedBlobs

__all__ = [
    "BlobInfo",
    "BlobStore",
    "FileBlobs",
    "MemoryBlobs",
    "PrefixedBlobs",
    "check_key",
    "open_blobs",
]
