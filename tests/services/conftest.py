"""The servers of this folder's tests. Helpers lie beside them."""

from __future__ import annotations

import sys
from pathlib import Path

# Tests are no package, and a helper must be importable by its name.
sys.path.insert(0, str(Path(__file__).parent))

from databases import database, postgres_server, redis_server, valkey_server
from object_servers import object_server

__all__ = ["database", "object_server", "postgres_server", "redis_server", "valkey_server"]
