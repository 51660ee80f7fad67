"""Bytes by key: the contract, and the stores that keep it."""

from holdfast.blobs.base import BlobInfo, BlobStore, check_key
from holdfast.blobs.files import FileBlobs
from holdfast.blobs.memory import MemoryBlobs
from holdfast.blobs.opening import open_blobs
from holdfast.blobs.prefixed import PrefixedBlobs
from holdfast.blobs.probing import probe
from holdfast.blobs.retrying import RetryingBlobs, RetryPolicy

__all__ = [
    "BlobInfo",
    "BlobStore",
    "FileBlobs",
    "MemoryBlobs",
    "PrefixedBlobs",
    "RetryPolicy",
    "RetryingBlobs",
    "check_key",
    "open_blobs",
    "probe",
]
