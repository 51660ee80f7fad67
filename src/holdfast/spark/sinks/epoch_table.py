"""The table beside a sink's own that says which epochs are in it. Nothing here moves rows.

    _holdfast_epochs  (flow, sink, epoch, checkpoint_id, rewound, PRIMARY KEY (flow, sink, epoch))
    _holdfast_targets (flow, sink, target, PRIMARY KEY (flow, sink, target))

A row of the first is an epoch; a rewound one is a tombstone, for good. The second knows which tables
a sink with an epoch column has written to, so that nobody takes back another sink's rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.coordinator.sink import Epoch, SinkFlow
from holdfast.errors import ConflictError
from holdfast.ids import CheckpointId
from holdfast.spark.sinks.dialects import Connection, Cursor, Dialect

EPOCHS = "_holdfast_epochs"
TARGETS = "_holdfast_targets"


@dataclass(frozen=True, slots=True)
class EpochRow:
    """What the database knows of one epoch. A rewound epoch that never was committed has no id."""

    id: CheckpointId | None
    rewound: bool


class EpochTable:
    """The rows of one flow's sink. Every call takes the connection, and with it the transaction, to use."""

    def __init__(self, dialect: Dialect, flow: SinkFlow) -> None:
        self._dialect = dialect
        self._flow = flow

    def newest(self, connection: Connection) -> Epoch | None:
        """The highest epoch shown. Which generation it came from is not known here: 0."""
        if not self._exists(connection):
            return None
        found = self._execute(
            connection,
            f"SELECT epoch, checkpoint_id FROM {EPOCHS} WHERE flow = ? AND sink = ? AND rewound = ? "
            "ORDER BY epoch DESC LIMIT 1",
            *self._whose,
            False,
        ).fetchone()
        return Epoch(found[0], CheckpointId.parse(found[1]), generation=0) if found else None

    def find(self, connection: Connection, number: int) -> EpochRow | None:
        if not self._exists(connection):
            return None
        found = self._execute(
            connection,
            f"SELECT checkpoint_id, rewound FROM {EPOCHS} WHERE flow = ? AND sink = ? AND epoch = ?",
            *self._whose,
            number,
        ).fetchone()
        if found is None:
            return None
        return EpochRow(CheckpointId.parse(found[0]) if found[0] else None, bool(found[1]))

    def create(self, connection: Connection) -> None:
        """Make both tables, unless they are there."""
        if self._exists(connection):
            return
        self._dialect.before_creating(connection)
        types = self._dialect.types
        text, number, flag = types["name"], types["bigint"], types["boolean"]
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {EPOCHS} (flow {text} NOT NULL, sink {text} NOT NULL, "
            f"epoch {number} NOT NULL, checkpoint_id {text} NOT NULL, rewound {flag} NOT NULL, "
            "PRIMARY KEY (flow, sink, epoch))"
        )
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {TARGETS} (flow {text} NOT NULL, sink {text} NOT NULL, "
            f"target {text} NOT NULL, PRIMARY KEY (flow, sink, target))"
        )

    def take(self, connection: Connection, epoch: Epoch) -> bool:
        """Insert the epoch's row. False if it was there: committed, or rewound. Raises ConflictError."""
        taken = self._execute(
            connection,
            f"INSERT INTO {EPOCHS} (flow, sink, epoch, checkpoint_id, rewound) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (flow, sink, epoch) DO NOTHING RETURNING epoch",
            *self._whose,
            epoch.number,
            str(epoch.id),
            False,
        ).fetchall()
        if taken:
            return True
        found = self.find(connection, epoch.number)
        if found is not None and not found.rewound:
            self.check_same_attempt(found, epoch)
        return False

    def bury(self, connection: Connection, first: int, last: int) -> None:
        """Leave a tombstone for each epoch of a closed range."""
        for number in range(first, last + 1):
            self._execute(
                connection,
                f"INSERT INTO {EPOCHS} (flow, sink, epoch, checkpoint_id, rewound) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (flow, sink, epoch) DO UPDATE SET rewound = excluded.rewound",
                *self._whose,
                number,
                "",
                True,
            )

    def remember_target(self, connection: Connection, target: str) -> None:
        """Note that this sink puts rows with epoch numbers into ``target``."""
        self._execute(
            connection,
            f"INSERT INTO {TARGETS} (flow, sink, target) VALUES (?, ?, ?) "
            "ON CONFLICT (flow, sink, target) DO NOTHING",
            *self._whose,
            target,
        )

    def others_in(self, connection: Connection, target: str) -> list[SinkFlow]:
        """Other sinks that put rows with epoch numbers into ``target``."""
        rows = self._execute(
            connection,
            f"SELECT flow, sink FROM {TARGETS} WHERE target = ? AND NOT (flow = ? AND sink = ?) "
            "ORDER BY flow, sink",
            target,
            *self._whose,
        ).fetchall()
        return [SinkFlow(*row) for row in rows]

    def check_same_attempt(self, found: EpochRow, epoch: Epoch) -> None:
        """Raise ConflictError if the epoch is shown as the work of another checkpoint."""
        if found.id != epoch.id:
            raise ConflictError(
                f"sink {self._flow.sink!r} already shows epoch {epoch.number} of {self._flow.flow!r}, "
                f"from checkpoint {found.id}; now it is to come from {epoch.id}"
            ).with_hint(
                "another store's flow of the same name wrote it; give the flow or the sink a new name"
            )

    @property
    def _whose(self) -> tuple[str, str]:
        return self._flow.flow, self._flow.sink

    def _exists(self, connection: Connection) -> bool:
        return self._dialect.table(connection, EPOCHS) is not None

    def _execute(self, connection: Connection, sql: str, *parameters: object) -> Cursor:
        return connection.execute(sql.replace("?", self._dialect.mark), parameters)
