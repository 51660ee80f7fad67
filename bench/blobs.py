"""What FileBlobs and ObjectBlobs cost beside the bare system calls and round trips, in one run.

    python bench/blobs.py [--only create|threads|large|listing|s3]

Each line prints ours, the floor measured in turn with it, and their ratio. Machines differ and are shared:
read the ratio, not the times. The S3 part starts a server (tests/services) behind a proxy that adds 50 ms.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.blobs import FileBlobs, open_blobs

ROOT = Path(__file__).resolve().parent.parent
SMALL = os.urandom(4096)
LARGE_BYTES = 256 * 1024 * 1024

_missed: list[str] = []


def main() -> int:
    parts = {"create": create, "threads": threads, "large": large, "listing": listing, "s3": s3}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=parts)
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory(prefix="bench-blobs-", dir=ROOT) as name:
        for part in [parts[only]] if only else parts.values():
            place = Path(name) / part.__name__
            place.mkdir()
            part(place)
    for missed in _missed:
        print(f"above its bound: {missed}")
    return 1 if _missed else 0


# -- files


def create(place: Path) -> None:
    blobs = FileBlobs(place / "ours")
    (place / "bare").mkdir()
    blobs.create("warm", SMALL)
    # Durations of a disk have long tails: many, in turn, and the median of each.
    ours, bare = in_turn(
        400, lambda n: blobs.create(f"{n:06}", SMALL), lambda n: bare_create(place / "bare", n, SMALL)
    )
    report("durable create of 4 KiB", ours, bare, at_most=1.3)


def threads(place: Path) -> None:
    blobs = FileBlobs(place / "ours")
    (place / "bare").mkdir()
    blobs.create("warm", SMALL)
    with ThreadPoolExecutor(4) as pool:

        def all_ours(n: int) -> object:
            return list(pool.map(lambda each: blobs.create(f"{n:03}-{each:03}", SMALL), range(64)))

        def all_bare(n: int) -> object:
            return list(pool.map(lambda each: bare_create(place / "bare", n * 1000 + each, SMALL), range(64)))

        ours, bare = in_turn(15, all_ours, all_bare)
    report("64 creates of 4 KiB on 4 threads", ours, bare, at_most=1.3)


def large(place: Path) -> None:
    data = os.urandom(LARGE_BYTES)
    blobs = FileBlobs(place / "ours")
    (place / "bare").mkdir()

    def remove(n: int) -> None:
        # Not timed: what it takes to free a file is the file system's business.
        blobs.delete(f"{n:06}")
        (place / "bare" / f"{n:06}").unlink(missing_ok=True)

    ours, bare = in_turn(
        7,
        lambda n: blobs.create(f"{n:06}", data),
        lambda n: bare_create(place / "bare", n, data),
        after_each=remove,
        best=True,
    )
    report("write of 256 MiB", ours, bare, at_most=1 / 0.9)
    blobs.create("large", data)
    path = place / "ours" / "large"
    ours, bare = in_turn(25, lambda _: blobs.get("large"), lambda _: bare_read(path), best=True)
    report("read of 256 MiB", ours, bare, at_most=1 / 0.9)


def listing(place: Path) -> None:
    peaks = {}
    for count in (10_000, 100_000):
        root = place / str(count)
        for number in range(count):
            directory = root / f"{number // 1000:03}"
            if number % 1000 == 0:
                directory.mkdir(parents=True)
            (directory / f"{number:06}").touch()
        tracemalloc.start()
        started = time.perf_counter()
        listed = sum(1 for _ in FileBlobs(root).list(""))
        seconds = time.perf_counter() - started
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert listed == count
        print(f"listing {count:,} keys: {seconds:.2f} s, at most {peaks[count] / 1e6:.2f} MB at a time")
    ratio = peaks[100_000] / peaks[10_000]
    verdict(f"memory of ten times the keys: {ratio:.2f} times", ratio <= 1.5)


def in_turn(
    rounds: int,
    ours: Callable[[int], object],
    bare: Callable[[int], object],
    *,
    after_each: Callable[[int], None] = lambda _: None,
    best: bool = False,
) -> tuple[float, float]:
    """Seconds of each: the median, or the best."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        # Whoever comes second finds a warmer disk, so they take turns at that, too.
        pair = [(ours, times[0]), (bare, times[1])]
        for call, into in pair if number % 2 else reversed(pair):
            into.append(timed(call, number))
            after_each(number)
    chosen = min if best else statistics.median
    return chosen(times[0]), chosen(times[1])


def bare_create(directory: Path, number: int, data: bytes) -> None:
    """The system calls alone: what any durable create-only write has to do."""
    path = f"{directory}/{number:06}"
    temporary = f"{path}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    os.close(descriptor)
    os.link(temporary, path)
    os.unlink(temporary)
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def bare_read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


# -- objects


def s3(_: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "services"))
    from bad_day_proxy import BadDayProxy
    from object_servers import SERVERS

    with SERVERS["moto"]() as server:
        proxy = BadDayProxy(server.endpoint)
        blobs = open_blobs(server.url, **server.at(proxy.url))
        blobs.create("warm", SMALL)

        def median_of(rounds: int, directory: str) -> float:
            return statistics.median(
                timed(lambda n: blobs.create(f"{directory}/{n:06}", SMALL), n) for n in range(rounds)
            )

        proxy.requests.clear()
        near = median_of(40, "near")
        trips = len(proxy.requests) / 40
        verdict(f"S3: {trips:g} requests a create, counted at the server", trips == 1)
        proxy.delay_seconds = 0.05
        far = median_of(40, "far")
        proxy.close()
    # What the server itself takes is not ours: the distance alone is compared.
    report("S3: what 50 ms of distance add to a create", far - near, 0.05, at_most=1.1)
    print(f"    (a create takes {near * 1000:.1f} ms near by and {far * 1000:.1f} ms far away)")


def timed(call: Callable[[int], object], number: int) -> float:
    started = time.perf_counter()
    call(number)
    return time.perf_counter() - started


def report(what: str, ours: float, floor: float, *, at_most: float) -> None:
    ratio = ours / floor
    verdict(
        f"{what}: {ours * 1000:.2f} ms, floor {floor * 1000:.2f} ms, ratio {ratio:.2f} <= {at_most:.2f}",
        ratio <= at_most,
    )


def verdict(text: str, holds: bool) -> None:
    print(f"{text}{'' if holds else '   MISSED'}", flush=True)
    if not holds:
        _missed.append(text)


if __name__ == "__main__":
    sys.exit(main())
