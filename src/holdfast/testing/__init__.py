"""For tests, ours and yours: suites that a backend of your own must pass, stores and clocks that misbehave.

Shipped, documented, and never imported by the product. The suites need pytest.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.testing.clock import FakeClock
from holdfast.testing.crashing import CALLS, WRITES, Call, Crash, CrashingBlobs
from holdfast.testing.faulty import FaultyBlobs, When

if TYPE_CHECKING:
    from holdfast.testing.blob_suite import BlobSuite
    from holdfast.testing.positions import PersistentPositionSuite, PositionSuite, SharedPositionSuite
    from holdfast.testing.sinks import SinkSuite
    from holdfast.testing.stores import LedgerStoreSuite, NumberedStoreSuite, StoreSuite

_SUITES = {
    "BlobSuite": "blob_suite",
    "LedgerStoreSuite": "stores",
    "NumberedStoreSuite": "stores",
    "PersistentPositionSuite": "positions",
    "PositionSuite": "positions",
    "SharedPositionSuite": "positions",
    "SinkSuite": "sinks",
    "StoreSuite": "stores",
}

__all__ = [
    "CALLS",
    "WRITES",
    "BlobSuite",
    "Call",
    "Crash",
    "CrashingBlobs",
    "FakeClock",
    "FaultyBlobs",
    "LedgerStoreSuite",
    "NumberedStoreSuite",
    "PersistentPositionSuite",
    "PositionSuite",
    "SharedPositionSuite",
    "SinkSuite",
    "StoreSuite",
    "When",
]


def __getattr__(name: str) -> Any:
    if name not in _SUITES:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    # pytest explains a failed assert only in modules that it was told of before their import.
    import pytest

    module = f"holdfast.testing.{_SUITES[name]}"
    if module not in sys.modules:
        pytest.register_assert_rewrite(module)
    return getattr(import_module(module), name)
