"""Object stores on bad days: through a proxy that loses, delays and garbles, before our own GCS and moto."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from bad_day_proxy import BadDayProxy, Fault
from databases import free_port
from object_servers import ObjectServer, ObjectServers

from holdfast.blobs import BlobStore, RetryingBlobs, open_blobs
from holdfast.blobs.base import RefusedError
from holdfast.blobs.objects import ObjectBlobs
from holdfast.errors import (
    InvalidInputError,
    KeyExistsError,
    KeyNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from holdfast.testing import FakeClock

pytestmark = pytest.mark.services

SHORT = {"allow_http": True, "timeout": "1s", "connect_timeout": "1s"}

CALLS: dict[str, Callable[[BlobStore], object]] = {
    "get": lambda blobs: blobs.get("there"),
    "get_range": lambda blobs: blobs.get_range("there", 0, 1),
    "head": lambda blobs: blobs.head("there"),
    "list": lambda blobs: list(blobs.list("")),
    "create": lambda blobs: blobs.create("new", b"data"),
    "put": lambda blobs: blobs.put("new", b"data"),
    "delete": lambda blobs: blobs.delete("there"),
}
READS = ("get", "get_range", "head", "list")


@pytest.fixture(params=["gcs", "moto"])
def server(object_server: ObjectServers, request: pytest.FixtureRequest) -> ObjectServer:
    return object_server(request.param)


@pytest.fixture
def direct(server: ObjectServer) -> ObjectBlobs:
    """The server itself: an empty bucket but for ``there``."""
    blobs = ObjectBlobs(server.url, **server.options)
    for info in list(blobs.list("")):
        blobs.delete(info.key)
    blobs.create("there", b"0123456789")
    return blobs


@pytest.fixture
def proxy(server: ObjectServer) -> Iterator[BadDayProxy]:
    proxy = BadDayProxy(server.endpoint)
    yield proxy
    proxy.close()


@pytest.fixture
def blobs(server: ObjectServer, direct: ObjectBlobs, proxy: BadDayProxy) -> ObjectBlobs:
    """The same bucket through the proxy; one attempt a call."""
    return ObjectBlobs(server.url, **server.at(proxy.url) | {"client_options": SHORT})


def retrying(blobs: ObjectBlobs) -> RetryingBlobs:
    return RetryingBlobs(blobs, sleep=FakeClock().sleep)


def puts(proxy: BadDayProxy) -> int:
    return [method for method, _ in proxy.requests].count("PUT")


# -- create: ours, taken, unknown


def test_a_create_costs_one_request(blobs: ObjectBlobs, proxy: BadDayProxy) -> None:
    blobs.create("key", [b"a", b"b"])
    blobs.put("other", [b"a", b"b"])

    assert [method for method, _ in proxy.requests] == ["PUT", "PUT"]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("PUT", forward=True), id="connection lost after it"),
        pytest.param(Fault("PUT", forward=True, status=500), id="500 after it"),
        pytest.param(
            Fault("PUT", forward=True, status=503, body=b"<Error><Code>SlowDown</Code></Error>"), id="503"
        ),
        pytest.param(Fault("PUT", forward=True, status=409), id="409 after it"),
        pytest.param(Fault("PUT", forward=True, status=408), id="408 after it"),
        pytest.param(Fault("PUT", forward=True, hang_seconds=1.5), id="timeout after it"),
        pytest.param(Fault("PUT", forward=True, raw=b"nonsense\r\n\r\n"), id="garbage after it"),
        pytest.param(Fault("PUT", forward=True, status=200), id="200 without an ETag"),
    ],
)
def test_a_create_that_took_effect_without_a_proper_answer_is_found_to_be_ours(
    blobs: ObjectBlobs, direct: ObjectBlobs, proxy: BadDayProxy, fault: Fault
) -> None:
    proxy.faults.append(Fault(**vars(fault)))

    blobs.create("key", b"ours")

    assert direct.get("key") == b"ours"
    assert puts(proxy) == 1, "settled by reading back"


@pytest.mark.parametrize("status", [None, 409, 500, 503])
def test_a_create_that_did_nothing_is_unknown_at_first_and_made_again_by_the_wrapper(
    blobs: ObjectBlobs, direct: ObjectBlobs, proxy: BadDayProxy, status: int | None
) -> None:
    proxy.faults.append(Fault("PUT", forward=False, status=status, times=2))

    with pytest.raises(OutcomeUnknownError, match="'key'"):
        blobs.create("key", b"ours")
    assert direct.head("key") is None

    retrying(blobs).create("key", b"ours")
    assert direct.get("key") == b"ours"
    assert puts(proxy) == 3


def test_409_is_neither_success_nor_taken_when_a_rival_was_faster(
    blobs: ObjectBlobs, direct: ObjectBlobs, proxy: BadDayProxy
) -> None:
    # S3 answers 409 to conditional writes that meet. Who won must be looked up.
    proxy.faults.append(Fault("PUT", forward=False, status=409))
    proxy.meanwhile = lambda: direct.create("key", b"theirs")

    with pytest.raises(KeyExistsError):
        blobs.create("key", b"ours")

    assert direct.get("key") == b"theirs"


def test_412_after_our_own_lost_attempt_is_ours(
    blobs: ObjectBlobs, direct: ObjectBlobs, proxy: BadDayProxy
) -> None:
    # Stored, answered 503, not readable for a moment, sent again: "taken", by ourselves.
    blobs.get("there")
    gone = b"<Error><Code>NoSuchKey</Code></Error>"
    proxy.faults.append(Fault("PUT", forward=True, status=503))
    proxy.faults.append(Fault("GET", forward=False, status=404, body=gone, times=2))

    retrying(blobs).create("key", b"ours")

    assert puts(proxy) == 2
    assert direct.get("key") == b"ours"


def test_412_is_taken_at_once_without_reading_anything(
    blobs: ObjectBlobs, direct: ObjectBlobs, proxy: BadDayProxy
) -> None:
    direct.create("key", b"same")

    with pytest.raises(KeyExistsError):
        blobs.create("key", b"same")

    assert [method for method, _ in proxy.requests] == ["PUT"]


def test_an_outcome_that_can_not_be_read_back_stays_unknown(
    blobs: ObjectBlobs, direct: ObjectBlobs, proxy: BadDayProxy
) -> None:
    proxy.faults += [Fault("PUT", forward=True), Fault("GET", forward=False, status=503, times=99)]

    with pytest.raises(OutcomeUnknownError):
        retrying(blobs).create("key", b"ours")

    assert direct.get("key") == b"ours", "and it was no failure"


# -- answers of all kinds


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", [401, 403])
def test_wrong_credentials_are_refused_once_and_never_read_as_missing(
    blobs: ObjectBlobs, proxy: BadDayProxy, name: str, status: int
) -> None:
    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        proxy.faults.append(Fault(method, forward=False, status=status, times=9))

    with pytest.raises(RefusedError) as caught:
        CALLS[name](retrying(blobs))

    assert str(status) in str(caught.value)
    assert "credentials" in (caught.value.hint or "")
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("*", forward=False), id="connection lost"),
        pytest.param(Fault("*", forward=False, status=500), id="500"),
        pytest.param(Fault("*", forward=False, status=503), id="503"),
        pytest.param(Fault("*", forward=False, status=429), id="429"),
        pytest.param(Fault("*", forward=False, raw=b"\x00\xff nonsense"), id="garbage"),
        pytest.param(Fault("*", forward=False, hang_seconds=1.3), id="timeout"),
    ],
)
def test_a_read_that_fails_is_unavailable_and_works_the_next_time(
    blobs: ObjectBlobs, proxy: BadDayProxy, name: str, fault: Fault
) -> None:
    def break_it() -> None:
        proxy.faults[:] = [Fault(**vars(fault) | {"method": method}) for method in ("GET", "HEAD")]

    break_it()
    with pytest.raises(StoreUnavailableError, match="bucket"):
        CALLS[name](blobs)

    break_it()
    CALLS[name](retrying(blobs))


def test_half_a_body_is_no_object(blobs: ObjectBlobs, proxy: BadDayProxy) -> None:
    for name in ("get", "get_range", "list"):
        proxy.faults[:] = [Fault("GET", forward=True, keep=0 if name == "get_range" else 5)]
        with pytest.raises(StoreUnavailableError):
            CALLS[name](blobs)


def test_a_login_page_is_no_object(blobs: ObjectBlobs, proxy: BadDayProxy) -> None:
    proxy.faults.append(Fault("GET", forward=False, status=200, body=b"<html>please log in</html>"))

    with pytest.raises(StoreUnavailableError, match=r"not an object store|made no sense"):
        blobs.get("there")


def test_a_missing_key_is_missing_and_a_missing_bucket_is_not(
    blobs: ObjectBlobs, direct: ObjectBlobs
) -> None:
    with pytest.raises(KeyNotFoundError):
        blobs.get("missing")
    assert blobs.head("missing") is None
    blobs.delete("missing")


@pytest.mark.parametrize("name", CALLS)
def test_an_endpoint_that_is_down_is_unavailable_and_certainly_did_nothing(
    server: ObjectServer, name: str
) -> None:
    down = f"http://127.0.0.1:{free_port()}"
    blobs = ObjectBlobs(server.url, **server.at(down) | {"client_options": SHORT})

    with pytest.raises(StoreUnavailableError, match="no connection"):
        CALLS[name](blobs)


def test_a_slow_store_is_waited_for(server: ObjectServer, direct: ObjectBlobs) -> None:
    proxy = BadDayProxy(server.endpoint, delay_seconds=0.3)
    try:
        blobs = ObjectBlobs(server.url, **server.at(proxy.url) | {"client_options": SHORT})
        started = time.monotonic()
        blobs.create("key", b"data")
        assert 0.3 <= time.monotonic() - started < 0.9, "one round trip"
    finally:
        proxy.close()


def test_a_backslash_is_refused_since_some_services_take_it_for_a_slash(direct: ObjectBlobs) -> None:
    with pytest.raises(InvalidInputError, match="backslash"):
        direct.create("a\\b", b"")


# -- secrets

SECRET = "T0pS3cretValue"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (
            "s3://bucket",
            {"aws_access_key_id": "AKIA", "aws_secret_access_key": SECRET, "aws_region": "us-east-1"},
        ),
        ("az://bucket", {"azure_storage_account_name": "a", "azure_storage_sas_key": f"sv=1&sig={SECRET}"}),
    ],
)
def test_no_secret_is_in_any_message_text_or_pickle(url: str, options: dict[str, str]) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    blobs = ObjectBlobs(url, **options, endpoint=endpoint, client_options=SHORT)
    told = [repr(blobs), repr(RetryingBlobs(blobs))]
    for name, call in CALLS.items():
        with pytest.raises(StoreUnavailableError) as caught:
            call(blobs)
        error: BaseException | None = caught.value
        while error is not None:
            told += [
                name,
                str(error),
                repr(error),
                str(getattr(error, "hint", "")),
                repr(pickle.dumps(error)),
            ]
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    with pytest.raises(InvalidInputError, match="does not travel") as refused:
        pickle.dumps(blobs)
    told.append(str(refused.value))

    assert SECRET not in "\n".join(told)


def test_without_secrets_a_store_travels_to_another_process() -> None:
    blobs = ObjectBlobs("s3://bucket", aws_region="eu-central-1", endpoint="http://127.0.0.1:1")

    assert pickle.loads(pickle.dumps(blobs)).url == "s3://bucket"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"s3://key:{SECRET}@bucket/path", {}),
        (f"s3://{SECRET}@bucket", {}),
        (f"az://bucket?sig={SECRET}", {}),
        ("s3://bucket", {"nonsense": SECRET}),
        ("s3://bucket", {"retry_config": SECRET}),
        ("az://bucket", {"azure_storage_account_name": [SECRET]}),
        ("s3://", {}),
    ],
)
def test_what_can_not_be_opened_is_refused_without_repeating_it(url: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_blobs(url, **options)

    assert SECRET not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


# -- processes


def test_the_forked_child_of_a_process_that_used_a_store_gets_an_error_and_not_a_hang(
    direct: ObjectBlobs,
) -> None:
    # The client's threads do not exist in the child: it would wait for them forever, and harm its parent too.
    direct.get("there")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        try:
            direct.get("there")
            told = "went on"
        except InvalidInputError as error:
            told = f"{error} {error.hint}"
        except BaseException as error:
            told = repr(error)
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    try:
        answered, _, _ = select.select([reading], [], [], 20)
        told = os.read(reading, 1000).decode() if answered else "it hangs"
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    assert "forked" in told
    assert "spawn" in told
    assert direct.get("there") == b"0123456789", "and the parent is well"


def test_a_fork_before_the_first_request_is_fine() -> None:
    program = """
import os, sys
from holdfast.blobs.objects import ObjectBlobs
from holdfast.errors import StoreUnavailableError
blobs = ObjectBlobs("s3://bucket", aws_region="us-east-1", aws_access_key_id="a", aws_secret_access_key="b",
                    endpoint="http://127.0.0.1:1", client_options={"allow_http": True})
pid = os.fork()
try:
    blobs.get("key")
except StoreUnavailableError:
    if pid == 0:
        os._exit(7)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 7
