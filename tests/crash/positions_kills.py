"""kill -9, round after round, at random moments: is each session all there or not at all, and nothing lost?

    .venv/bin/python tests/crash/positions_kills.py --rounds 200

A child works through one endless list of operations: sessions over eight sources, the hash, now and then
a clear. It says which it has finished. Whatever moment it is killed at, the store must be as after the last
one it named, or as after the one under way. ``+rows``: the caller's own row is in the same transaction.
``!``: the server is killed instead, and started again.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.positions import SourceCheckpoint, SourceCheckpointStore, open_positions
from holdfast.positions.sql import SQLSourceCheckpointStore

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "services"))

SOURCES = [f"source-{n}" for n in range(8)]
KINDS = [
    *("sqlite", "sqlite+rows", "rocksdb", "redis", "valkey", "postgres", "postgres+rows"),
    *("redis!", "valkey!", "postgres!"),
]


@dataclass(frozen=True)
class State:
    """All that a store shows."""

    entries: dict[str, SourceCheckpoint]
    result: int | None
    config_hash: int | None
    generation: int
    rows: int


def kind_of(number: int) -> str:
    return {4: "hash", 9: "clear"}.get(number % 10, "session")


def state_after(number: int, *, with_rows: bool) -> State:
    """What operations 1 … ``number`` leave behind."""
    done = range(1, number + 1)
    cleared = [n for n in done if kind_of(n) == "clear"]
    since = done[cleared[-1] :] if cleared else done
    sessions = [n for n in since if kind_of(n) == "session"]
    hashes = [n for n in since if kind_of(n) == "hash"]
    last = sessions[-1] if sessions else None
    return State(
        entries={}
        if last is None
        else {name: SourceCheckpoint(last, position(last, name)) for name in SOURCES},
        result=last,
        config_hash=hashes[-1] if hashes else None,
        generation=len(cleared),
        rows=sum(1 for n in done if kind_of(n) == "session") if with_rows else 0,
    )


def position(number: int, source: str) -> bytes:
    return f"{number}:{source}:".encode() * 20


# -- the child


def work(kind: str, url: str, start: int) -> None:
    """Operations from ``start`` on, until somebody kills us."""
    store, connection = opened(kind, url)
    number = start
    while True:
        if kind_of(number) == "clear":
            store.clear_checkpoints()
        elif kind_of(number) == "hash":
            store.write_config_hash(number)
        else:
            session = (
                store.session(connection) if isinstance(store, SQLSourceCheckpointStore) else store.session()
            )
            with session:
                if connection is not None:
                    connection.execute(f"INSERT INTO mine VALUES ({number})")
                for name in SOURCES:
                    store.stage_checkpoint(name, number, position(number, name))
                store.stage_result_sequence("q", number)
                session.commit()
        os.write(1, b"%d\n" % number)
        number += 1


def opened(kind: str, url: str) -> tuple[SourceCheckpointStore, Any]:
    store = open_positions(url, "q")
    return store, connect(kind, url) if "+rows" in kind else None


def connect(kind: str, url: str) -> Any:
    if kind.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    import psycopg

    return psycopg.connect(url)


# -- the parent


@contextmanager
def serving_kind(kind: str, place: Path) -> Iterator[tuple[str, Any]]:
    name = kind.rstrip("!").removesuffix("+rows")
    if name == "sqlite":
        yield f"sqlite:///{place}/positions.db", None
    elif name == "rocksdb":
        yield f"rocksdb://{place}", None
    else:
        from databases import serving

        for server in serving(name):
            yield server.url, server


def look(kind: str, url: str) -> State:
    with open_positions(url, "q") as store:
        rows = 0
        if "+rows" in kind:
            connection = connect(kind, url)
            rows = connection.execute("SELECT count(*) FROM mine").fetchone()[0]
            connection.close()
        return State(
            entries=store.read_all_checkpoints(),
            result=store.read_result_sequence("q"),
            config_hash=store.read_config_hash(),
            generation=store.read_generation(),
            rows=rows,
        )


def wait_until_alone(kind: str, url: str) -> None:
    """A server may still be at work for a client that is dead: what it does then was asked for in time.

    Each look is made of several reads, and would see the store before and after.
    """
    until = time.monotonic() + 30
    with counting_others(kind, url) as others:
        while others():
            assert time.monotonic() < until, "the killed child's connection does not end"
            time.sleep(0.01)


@contextmanager
def counting_others(kind: str, url: str) -> Iterator[Callable[[], int]]:
    """How many clients the server has beside us, asked over one connection."""
    if kind.startswith("postgres"):
        import psycopg

        query = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(url, autocommit=True) as connection:
            yield lambda: sum(count for (count,) in connection.execute(query))
    elif kind.startswith(("redis", "valkey")):
        import redis

        with redis.Redis.from_url(url) as client:
            yield lambda: len(client.client_list()) - 1
    else:
        yield lambda: 0


@dataclass
class Tally:
    rounds: int = 0
    operations: int = 0
    under_way_done: int = 0
    under_way_not: int = 0


def one_round(kind: str, url: str, server: Any, done: int, chance: random.Random, tally: Tally) -> int:
    """Start a child after operation ``done``, kill it, look. Returns the last operation that is there."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", kind, url, str(done + 1)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # or what readline read ahead would be lost to communicate
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    time.sleep(chance.random() ** 2 * 0.06)
    if kind.endswith("!"):
        server.kill()
        # The child finds out by itself: an error, and its end.
        printed, said = child.communicate(timeout=60)
        assert b"StoreUnavailableError" in said or b"OutcomeUnknownError" in said, said.decode()
        server.start()
    else:
        child.kill()
        printed, said = child.communicate()
    acknowledged = [int(line) for line in (first + printed).split(b"\n")[:-1]]
    assert acknowledged, said.decode()
    last = acknowledged[-1]

    wait_until_alone(kind, url)
    seen = look(kind, url)
    tally.rounds += 1
    tally.operations += len(acknowledged)
    for number in (last, last + 1):
        if seen == state_after(number, with_rows="+rows" in kind):
            if number == last:
                tally.under_way_not += 1
            else:
                tally.under_way_done += 1
            return number
    raise AssertionError(f"{kind}: after operation {last} was acknowledged the store shows {seen}")


def rounds(kind: str, count: int, seed: int, told: Callable[[str], None] = print) -> Tally:
    chance = random.Random(seed)
    tally, done = Tally(), 0
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-kills-") as name,
        serving_kind(kind, Path(name)) as (url, server),
    ):
        open_positions(url, "q").close()
        if "+rows" in kind:
            connection = connect(kind, url)
            connection.execute("CREATE TABLE mine (n INTEGER PRIMARY KEY)")
            connection.commit()
            connection.close()
        for _ in range(count):
            done = one_round(kind, url, server, done, chance, tally)
    told(
        f"{kind:15} rounds {tally.rounds:4}  acknowledged {tally.operations:6}  "
        f"under way: {tally.under_way_done} there, {tally.under_way_not} not  lost 0  torn 0  (seed {seed})"
    )
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, url, start = options.child
        try:
            work(kind, url, int(start))
        except HoldfastError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    for kind in options.kind or KINDS:
        rounds(kind, options.rounds, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
