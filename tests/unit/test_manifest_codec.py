"""What the parser refuses, and that canonical and stored forms are what any JSON library would make."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.manifest.codec import (
    MAX_DEPTH,
    canonical,
    check_json,
    from_document,
    is_stored_form,
    parse_object,
    pretty,
    to_document,
)

KEY = "checkpoints/x/manifest.json"
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(texts, values, max_size=6)


class Inner(msgspec.Struct):
    count: int = 0


class Outer(msgspec.Struct):
    inner: Inner | None = None
    many: dict[str, Inner] = {}
    plain: dict[str, int] = {}
    listed: list[Inner] = []


@given(documents)
def test_the_stored_form_is_what_the_standard_library_writes(document: dict[str, Any]) -> None:
    assert pretty(document) == json.dumps(document, indent=2, ensure_ascii=False).encode()
    assert is_stored_form(pretty(document), document)


@given(documents)
def test_what_is_stored_is_read_back_and_has_one_canonical_form(document: dict[str, Any]) -> None:
    again = parse_object(pretty(document), KEY)

    assert again == document
    assert canonical(again) == canonical(document)
    assert canonical(document) == canonical(dict(reversed(document.items())))


def test_another_spelling_of_the_same_document_is_not_the_stored_form() -> None:
    document = {"a": "\x1f", "b": 1}
    data = pretty(document)

    assert b"\\u001f" in data
    assert not is_stored_form(data.replace(b"\\u001f", b"\\u001F"), document)
    assert not is_stored_form(data + b"\n", document)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        ('{"a":1}'.encode("utf-16-le"), "not JSON"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e999}', "out of range"),
        (b'{"a":' + b"9" * 5000 + b"}", "out of range"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested deeper"),
        (b'{"a":1} x', "not JSON"),
        (b'{"a":1}{"a":1}', "not JSON"),
        (b'{"a":1,}', "not JSON"),
        (b'{"a":01}', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"a":"\n"}', "not JSON"),
        (b'{"a":1,"a":1}', "repeated"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b"[1]", "array"),
        (b"null", "null"),
        (b"3", "number"),
    ],
)
def test_bytes_that_two_readers_could_read_in_two_ways_are_corrupt(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptError) as caught:
        parse_object(data, KEY)

    assert caught.value.key == KEY
    assert reason in caught.value.reason


def test_a_surrogate_pair_is_one_character() -> None:
    assert parse_object(b'{"a":"\\ud83d\\ude00"}', KEY) == {"a": "😀"}


@pytest.mark.parametrize("number", ["-0", "1.0", "18446744073709551616", "-9223372036854775809", "1e2"])
def test_a_number_that_is_no_64_bit_integer_is_none(number: str) -> None:
    document = parse_object(b'{"inner":{"count":' + number.encode() + b"}}", KEY)

    with pytest.raises(CorruptError, match="Expected `int`"):
        from_document(document, Outer, KEY)


@pytest.mark.parametrize(
    "text",
    [
        '{"inner":{"count":1,"count":1}}',
        '{"inner":{"unknown":1,"unknown":1}}',
        '{"many":{"a":{"count":1,"count":2}}}',
        '{"listed":[{"count":1},{"count":1,"count":1}]}',
    ],
)
def test_a_struct_with_a_key_twice_is_corrupt(text: str) -> None:
    document = parse_object(text.encode(), KEY)

    with pytest.raises(CorruptError, match="repeated in the struct"):
        from_document(document, Outer, KEY)


def test_in_a_map_the_last_of_two_equal_keys_wins_and_unknown_values_are_read_over() -> None:
    text = b'{"plain":{"a":1,"a":2},"other":{"x":1,"x":2,"deep":[1.5,null]}}'

    assert from_document(parse_object(text, KEY), Outer, KEY) == Outer(plain={"a": 2})


def test_a_million_keys_are_parsed_or_refused_but_never_hang() -> None:
    data = b"{" + b",".join(b'"%d":0' % n for n in range(1_000_000)) + b"}"

    assert len(parse_object(data, KEY)) == 1_000_000


@pytest.mark.parametrize(
    "value", [1.5, {"a": float("nan")}, [2**64], {1: 2}, {"a": b"x"}, "\ud800", {"a": {3}}]
)
def test_what_would_not_come_back_as_it_was_given_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="receipt"):
        check_json(value, "the receipt")


def test_a_struct_holding_what_could_not_be_read_back_is_not_written() -> None:
    for wrong in (Outer(plain={"a": 2**64}), Outer(plain={"a": 1.0}), Outer(plain={"\ud800": 1})):  # type: ignore[dict-item]
        with pytest.raises(InvalidInputError, match="Outer"):
            to_document(wrong)
