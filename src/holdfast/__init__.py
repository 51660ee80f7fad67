"""Checkpoints you can trust for PySpark streaming. The public names, on one screen.

Each name is loaded when it is first used, so that ``import holdfast`` costs next to nothing and asks for no
extra. Inside the package import from the module that defines a name, never from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.batch import CheckpointBatcher as CheckpointBatcher
    from holdfast.blobs.base import BlobStore as BlobStore
    from holdfast.blobs.files import FileBlobs as FileBlobs
    from holdfast.blobs.memory import MemoryBlobs as MemoryBlobs
    from holdfast.blobs.opening import open_blobs as open_blobs
    from holdfast.errors import ConflictError as ConflictError
    from holdfast.errors import CorruptError as CorruptError
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import InvalidInputError as InvalidInputError
    from holdfast.errors import MissingExtraError as MissingExtraError
    from holdfast.errors import NotFoundError as NotFoundError
    from holdfast.errors import OutcomeUnknownError as OutcomeUnknownError
    from holdfast.errors import StoreUnavailableError as StoreUnavailableError
    from holdfast.ids import CheckpointId as CheckpointId
    from holdfast.layout import CheckpointPaths as CheckpointPaths
    from holdfast.manifest.v1 import CheckpointManifest as CheckpointManifest
    from holdfast.manifest.v2 import CheckpointManifestV2 as CheckpointManifestV2
    from holdfast.store.base import CheckpointStore as CheckpointStore
    from holdfast.store.numbered import FileSystemCheckpointStore as FileSystemCheckpointStore
    from holdfast.store.numbered import MemoryCheckpointStore as MemoryCheckpointStore
    from holdfast.store.numbered import ObjectStoreCheckpointStore as ObjectStoreCheckpointStore
    from holdfast.store.partitioned import PartitionedCheckpointStore as PartitionedCheckpointStore

    __version__: str

_HOMES = {
    "BlobStore": "blobs.base",
    "CheckpointBatcher": "batch",
    "CheckpointId": "ids",
    "CheckpointManifest": "manifest.v1",
    "CheckpointManifestV2": "manifest.v2",
    "CheckpointPaths": "layout",
    "CheckpointStore": "store.base",
    "ConflictError": "errors",
    "CorruptError": "errors",
    "FileBlobs": "blobs.files",
    "FileSystemCheckpointStore": "store.numbered",
    "HoldfastError": "errors",
    "InvalidInputError": "errors",
    "MemoryBlobs": "blobs.memory",
    "MemoryCheckpointStore": "store.numbered",
    "MissingExtraError": "errors",
    "NotFoundError": "errors",
    "ObjectStoreCheckpointStore": "store.numbered",
    "OutcomeUnknownError": "errors",
    "PartitionedCheckpointStore": "store.partitioned",
    "StoreUnavailableError": "errors",
    "open_blobs": "blobs.opening",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("holdfast")
    elif name in _HOMES:
        value = getattr(import_module(f"holdfast.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
