"""What the contract costs: a session of 8 sources, and a read of 10,000, beside a bare client's.

Both in the same run, in turns, so that the machine's mood hits both. ``bare`` is the plain way with each
client: one transaction of 8 upserts, or one statement that reads all rows and makes numbers of them.
Lower quartiles. Servers are started here where they can be had.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "services"))

from databases import serving

from holdfast.positions import SourceCheckpointStore, open_positions

SESSION_LIMIT = 1.3
READ_LIMIT = 1.5
NAMES = [f"source-{n}" for n in range(8)]
MANY = 10_000
Bare = tuple[Callable[[int], None], Callable[[], int]]


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def position(value: int) -> bytes:
    return b"%020d" % value


# -- the bare clients: (write 8 rows in one transaction, read all rows)


@contextmanager
def bare_sqlite(place: str) -> Iterator[Bare]:
    connection = sqlite3.connect(f"{place}/bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE p (q TEXT, s TEXT, n BLOB, p BLOB, PRIMARY KEY (q, s))")

    def write(rows: list[tuple[str, str, bytes, bytes]]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO p VALUES (?, ?, ?, ?) "
            "ON CONFLICT (q, s) DO UPDATE SET n = excluded.n, p = excluded.p",
            rows,
        )
        connection.execute("COMMIT")

    def session(at: int) -> None:
        write([("q", name, number(at), position(at)) for name in NAMES])

    def read() -> int:
        rows = connection.execute("SELECT s, n, p FROM p WHERE q = ?", ("many",)).fetchall()
        return len({name: (int.from_bytes(raw, "big"), where) for name, raw, where in rows})

    write([("many", f"source-{n}", number(n), position(n)) for n in range(MANY)])
    yield session, read
    connection.close()


@contextmanager
def bare_postgres(url: str) -> Iterator[Bare]:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE p (q TEXT, s TEXT, n BYTEA, p BYTEA, PRIMARY KEY (q, s))")
        connection.commit()

        def write(rows: list[tuple[str, str, bytes, bytes]]) -> None:
            with connection.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO p VALUES (%s, %s, %s, %s) "
                    "ON CONFLICT (q, s) DO UPDATE SET n = excluded.n, p = excluded.p",
                    rows,
                )
            connection.commit()

        def session(at: int) -> None:
            write([("q", name, number(at), position(at)) for name in NAMES])

        def read() -> int:
            rows = connection.execute("SELECT s, n, p FROM p WHERE q = %s", ("many",), binary=True).fetchall()
            connection.rollback()
            return len({name: (int.from_bytes(raw, "big"), where) for name, raw, where in rows})

        write([("many", f"source-{n}", number(n), position(n)) for n in range(MANY)])
        yield session, read


@contextmanager
def bare_rocksdb(place: str) -> Iterator[Bare]:
    import rocksdict

    database = rocksdict.Rdict(f"{place}/bare", rocksdict.Options(raw_mode=True))
    durable = rocksdict.WriteOptions()
    durable.sync = True

    def write(rows: list[tuple[str, int]]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for name, at in rows:
            batch.put(b"n:" + name.encode(), number(at))
            batch.put(b"p:" + name.encode(), position(at))
        database.write(batch, durable)

    def read() -> int:
        positions = {}
        found = {}
        for key, value in database.items(from_key=b"many:"):
            if key.startswith(b"many:n:"):
                positions[key[7:]] = int.from_bytes(value, "big")
            elif key.startswith(b"many:p:"):
                found[key[7:].decode()] = (positions[key[7:]], value)
            else:
                break
        return len(found)

    batch = rocksdict.WriteBatch(raw_mode=True)
    for n in range(MANY):
        batch.put(b"many:n:source-%d" % n, number(n))
        batch.put(b"many:p:source-%d" % n, position(n))
    database.write(batch, durable)
    yield lambda at: write([(name, at) for name in NAMES]), read
    database.close()


@contextmanager
def bare_redis(url: str) -> Iterator[Bare]:
    import redis

    with redis.Redis.from_url(url) as client:

        def session(at: int) -> None:
            with client.pipeline(transaction=True) as pipe:
                for name in NAMES:
                    pipe.set(f"{{bare}}:n:{name}", at)
                    pipe.set(f"{{bare}}:p:{name}", position(at))
                pipe.execute()

        names = [f"source-{n}" for n in range(MANY)]

        def read() -> int:
            values: Any = client.mget(
                [f"{{many}}:n:{name}" for name in names] + [f"{{many}}:p:{name}" for name in names]
            )
            return len({name: (int(values[at]), values[MANY + at]) for at, name in enumerate(names)})

        client.mset({f"{{many}}:n:source-{n}": n for n in range(MANY)})
        client.mset({f"{{many}}:p:source-{n}": position(n) for n in range(MANY)})
        yield session, read


# -- ours


def ours(store: SourceCheckpointStore, at: int) -> None:
    with store.session() as session:
        for name in NAMES:
            store.stage_checkpoint(name, at, position(at))
        session.commit()


def fill(store: SourceCheckpointStore) -> None:
    with store.session() as session:
        for n in range(MANY):
            store.stage_checkpoint(f"source-{n}", n, position(n))
        session.commit()


def in_turns(one: Callable[[int], object], other: Callable[[int], object], count: int) -> tuple[float, float]:
    """Seconds of both, taken alternately: the quickest quarter's slowest, since others use this disk too."""
    spent: tuple[list[float], list[float]] = ([], [])
    for at in range(1, count + 1):
        for which, call in ((0, one), (1, other)) if at % 2 else ((1, other), (0, one)):
            started = time.perf_counter()
            call(at)
            spent[which].append(time.perf_counter() - started)
    return tuple(statistics.quantiles(each[count // 10 :], n=4)[0] for each in spent)  # type: ignore[return-value]


def measure(kind: str, url: str, bare: Bare, sessions: int, reads: int) -> dict[str, Any]:
    bare_session, bare_read = bare
    with open_positions(url, "few") as few:
        session, plain = in_turns(lambda at: ours(few, at), bare_session, sessions)
    with open_positions(url, "many") as many:
        fill(many)
        assert len(many.read_all_checkpoints()) == bare_read() == MANY
        read, plain_read = in_turns(lambda _: many.read_all_checkpoints(), lambda _: bare_read(), reads)
    return {
        "backend": kind,
        "session_ms": session * 1e3,
        "bare_session_ms": plain * 1e3,
        "session_ratio": session / plain,
        "read_ms": read * 1e3,
        "bare_read_ms": plain_read * 1e3,
        "read_ratio": read / plain_read,
    }


def backends(chosen: list[str]) -> Iterator[tuple[str, str, Any]]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place:
        if "sqlite" in chosen:
            yield "sqlite", f"{place}/ours", bare_sqlite(place)
        if "rocksdb" in chosen:
            yield "rocksdb", f"rocksdb://{place}/rocks", bare_rocksdb(place)
    for kind in ("postgres", "redis", "valkey"):
        if kind in chosen:
            try:
                for server in serving(kind):
                    yield (
                        kind,
                        server.url,
                        bare_postgres(server.url) if kind == "postgres" else bare_redis(server.url),
                    )
            except LookupError as error:
                print(f"{kind}: {error}", file=sys.stderr)


def import_cost() -> tuple[float, list[str]]:
    code = (
        "import sys, time; t = time.perf_counter(); import holdfast.positions; t = time.perf_counter() - t; "
        "clients = {'redis', 'psycopg', 'rocksdict', 'adbc_driver_manager', 'sqlite3', 'asyncio'}; "
        "import json; print(json.dumps([t, sorted(clients & set(sys.modules))]))"
    )
    spent, loaded = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    )
    return spent, loaded


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--reads", type=int, default=30)
    parser.add_argument(
        "--backend", action="append", choices=["sqlite", "rocksdb", "postgres", "redis", "valkey"]
    )
    options = parser.parse_args()
    every = ["sqlite", "rocksdb", "postgres", "redis", "valkey"]

    print(f"{'':10} {'session of 8':>24} {'':>8} {'read of 10,000':>24}")
    print(
        f"{'':10} {'ours ms':>12} {'bare ms':>11} {'ratio':>8} {'ours ms':>12} {'bare ms':>11} {'ratio':>8}"
    )
    worst: list[str] = []
    for kind, url, bare in backends(options.backend or every):
        with ExitStack() as stack:
            one = measure(kind, url, stack.enter_context(bare), options.sessions, options.reads)
        print(
            f"{kind:10} {one['session_ms']:12.3f} {one['bare_session_ms']:11.3f} {one['session_ratio']:8.2f} "
            f"{one['read_ms']:12.2f} {one['bare_read_ms']:11.2f} {one['read_ratio']:8.2f}",
            flush=True,
        )
        if one["session_ratio"] > SESSION_LIMIT:
            worst.append(f"{kind}: a session costs {one['session_ratio']:.2f} x the bare client's")
        if one["read_ratio"] > READ_LIMIT:
            worst.append(f"{kind}: reading all costs {one['read_ratio']:.2f} x the bare client's")
    spent, loaded = import_cost()
    print(f"import holdfast.positions: {spent * 1e3:.0f} ms, client libraries loaded: {loaded or 'none'}")
    for sentence in worst:
        print(f"above its limit: {sentence}")
    # Times are told, not enforced: a busy machine would fail. What is imported is no matter of luck.
    return 1 if loaded else 0


if __name__ == "__main__":
    sys.exit(main())
