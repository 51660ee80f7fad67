"""JSON as it is stored: strict to read, canonical to digest, pretty to write. No field has a meaning here.

``parse_object`` refuses what two readers could read in two ways: a BOM, UTF-16, NaN, repeated
keys of a struct, half a surrogate pair, nesting without end. What it lets through has one meaning, so
one digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Never, TypeAlias, TypeVar, cast

import msgspec

from holdfast.errors import CorruptError, InvalidInputError
from holdfast.ids import CheckpointId
from holdfast.manifest.status import SinkCommitStatus

#: Whatever JSON can say. Recursive types cannot be written for Python 3.11 and msgspec both.
JsonValue: TypeAlias = Any

#: Deeper than any manifest of ours by far, shallower than any interpreter's stack.
MAX_DEPTH = 100
#: A manifest of 100,000 partitions has about 30 MB.
MAX_BYTES = 256 * 1024 * 1024
U64_MAX = 2**64 - 1
I64_MIN = -(2**63)

T = TypeVar("T")


class _Repeated(dict[str, Any]):
    """An object of which a key came twice. Fine in a map (the last one wins), never in a struct."""


class _Suspect(dict[str, Any]):
    """A document with a ``_Repeated`` somewhere: ``from_document`` has to find out whether it matters."""


def canonical(document: Mapping[str, Any]) -> bytes:
    """The bytes every digest of a document is taken over: UTF-8, compact, sorted keys, non-ASCII raw."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def pretty(document: Mapping[str, Any]) -> bytes:
    """The bytes a document is stored as: two-space indent, keys in the order given, no newline at the end."""
    # The same bytes as json.dumps(document, indent=2, ensure_ascii=False), a test says, in a 20th of the
    # time.
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def is_stored_form(data: bytes, document: Mapping[str, Any]) -> bool:
    """Whether ``data`` is, byte for byte, what a writer of ``document`` stores."""
    if data == pretty(document):
        return True
    # Floats (only a newer version's unknown keys may hold one) have one more usual spelling.
    return data == json.dumps(document, indent=2, ensure_ascii=False).encode()


def sha256_hex(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def parse_object(data: bytes, key: str) -> dict[str, Any]:
    """The one JSON object in ``data``, the bytes of ``key``. Raises CorruptError, naming both."""
    if len(data) > MAX_BYTES:
        raise CorruptError(key, f"{len(data)} bytes are more than any document of ours ({MAX_BYTES})")
    if data.startswith(b"\xef\xbb\xbf"):
        raise CorruptError(key, "it starts with a byte order mark")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(key, f"it is not UTF-8: {error.reason} at byte {error.start}") from None
    suspect: list[_Repeated] = []

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            value = _Repeated(value)
            suspect.append(value)
        return value

    try:
        document = json.loads(
            text,
            object_pairs_hook=make_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise CorruptError(key, f"it is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise CorruptError(key, f"it is not JSON: {error}" if text.strip() else "it is empty") from None
    if not isinstance(document, dict):
        raise CorruptError(key, f"it holds a JSON {_kind(document)}, not an object")
    if isinstance(document, _Repeated):
        raise CorruptError(key, "a key is repeated in the outermost object")
    reason = find_unsound(document)
    if reason is not None:
        raise CorruptError(key, reason)
    return _Suspect(document) if suspect else document


def find_unsound(value: JsonValue) -> str | None:
    """Why ``value`` cannot be stored and read again as the same: too deep, or half a character in a text."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                # Only an escape can smuggle in a lone surrogate: it is no character, and has no UTF-8.
                if not item.isascii() and not _is_text(item):
                    return f"a text holds half a surrogate pair: {item[:40]!a}"
            elif isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return None
        level = below
    return f"it is nested deeper than {MAX_DEPTH} levels"


def from_document(document: Mapping[str, Any], type_: type[T], key: str) -> T:
    """``document``, as ``parse_object`` returned it, as a struct of ``type_``; unknown keys are read over.

    Raises CorruptError.
    """
    try:
        value = msgspec.convert(document, type_, dec_hook=decode_field)
    except msgspec.ValidationError as error:
        raise CorruptError(key, str(error)) from None
    if isinstance(document, _Suspect):
        repeated = _repeated_struct(document, _shape_of(cast(Any, type_)))
        if repeated:
            raise CorruptError(key, f"a key is repeated in the struct at {repeated}")
    return value


def to_document(value: msgspec.Struct) -> dict[str, Any]:
    """``value`` as plain JSON values, every field, in the order it is declared.

    Raises InvalidInputError for what could not be read back: a wrong type, a float, a number out of range.
    """
    name = type(value).__name__
    try:
        document = cast(dict[str, Any], msgspec.to_builtins(value, enc_hook=encode_field))
        msgspec.convert(document, type(value), dec_hook=decode_field)
        # Only for what it refuses, in one pass without Python: integers past 64 bits, half surrogate pairs.
        msgspec.msgpack.encode(document)
    except RecursionError:
        raise InvalidInputError(f"{name}: it is nested deeper than {MAX_DEPTH} levels") from None
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise InvalidInputError(f"{name}: {error}") from None
    for field in _loose_fields(type(value)):
        reason = find_unsound(document.get(field)) or _find_unstorable(document.get(field))
        if reason is not None:
            raise InvalidInputError(f"{name}: {field}: {reason}")
    return document


def check_json(value: JsonValue, what: str) -> None:
    """InvalidInputError unless ``value`` is JSON that every reader reads alike: no floats, text keys."""
    reason = find_unsound(value) or _find_unstorable(value)
    if reason is not None:
        raise InvalidInputError(f"{what}: {reason}")


def encode_field(value: Any) -> Any:
    """What msgspec does not know itself, as JSON (an ``enc_hook``)."""
    if isinstance(value, CheckpointId):
        return str(value)
    if isinstance(value, SinkCommitStatus):
        return value.to_wire()
    raise NotImplementedError(f"cannot store a {type(value).__name__}")


def decode_field(type_: type, value: Any) -> Any:
    """The way back (a ``dec_hook``). msgspec turns the ValueError into one that says where."""
    if type_ is CheckpointId:
        if not isinstance(value, str):
            raise ValueError(f"Expected a checkpoint id, got `{_kind(value)}`")
        return CheckpointId.parse(value)
    if type_ is SinkCommitStatus:
        return SinkCommitStatus.from_wire(value)
    raise NotImplementedError(f"no stored form of {type_.__name__}")


def _integer(text: str) -> int | float:
    # As in every strict reader: -0 and what no 64 bits hold are numbers, but not integers.
    if text == "-0":
        return -0.0
    if len(text) <= 20:
        value = int(text)
        if I64_MIN <= value <= U64_MAX:
            return value
    return _float(text)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"number out of range: {text[:40]}")
    return value


def _refuse_constant(text: str) -> Never:
    raise ValueError(f"{text} is not a JSON value")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _find_unstorable(value: JsonValue) -> str | None:
    if value is None or isinstance(value, str | bool):
        return None
    if isinstance(value, int):
        return None if I64_MIN <= value <= U64_MAX else f"{value} does not fit 64 bits"
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            return "an object has a key that is no text"
        return _first_unstorable(list(value.values()))
    if isinstance(value, list | tuple):
        return _first_unstorable(value)
    if isinstance(value, float):
        return f"{value!r} is a float: two readers may read it differently, so none is stored"
    return f"a {type(value).__name__} is not JSON"


def _first_unstorable(values: Sequence[Any]) -> str | None:
    return next((reason for value in values if (reason := _find_unstorable(value)) is not None), None)


@cache
def _shape_of(type_: type) -> msgspec.inspect.Type:
    # Resolving annotations takes milliseconds: many times what parsing a manifest does.
    return msgspec.inspect.type_info(type_)


@cache
def _loose_fields(type_: type) -> tuple[str, ...]:
    """Fields that take any JSON, so that no type has kept floats and the like out of them."""
    shape = _shape_of(type_)
    assert isinstance(shape, msgspec.inspect.StructType)
    return tuple(field.encode_name for field in shape.fields if _is_loose(field.type))


def _is_loose(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.UnionType):
        return any(map(_is_loose, info.types))
    if isinstance(info, msgspec.inspect.DictType):
        return _is_loose(info.value_type)
    if isinstance(info, msgspec.inspect.ListType):
        return _is_loose(info.item_type)
    if isinstance(info, msgspec.inspect.StructType):
        return any(_is_loose(field.type) for field in info.fields)
    return isinstance(info, msgspec.inspect.AnyType)


def _repeated_struct(value: Any, info: msgspec.inspect.Type, path: str = "$") -> str | None:
    """Where a struct was given with a key twice. Maps may repeat: the last one wins."""
    if isinstance(info, msgspec.inspect.UnionType):
        for option in info.types:
            found = _repeated_struct(value, option, path)
            if found:
                return found
    elif isinstance(info, msgspec.inspect.StructType) and isinstance(value, dict):
        if isinstance(value, _Repeated):
            return path
        for field in info.fields:
            found = _repeated_struct(value.get(field.encode_name), field.type, f"{path}.{field.encode_name}")
            if found:
                return found
    elif isinstance(info, msgspec.inspect.DictType) and isinstance(value, dict):
        for name, item in value.items():
            found = _repeated_struct(item, info.value_type, f"{path}.{name}")
            if found:
                return found
    elif isinstance(info, msgspec.inspect.ListType) and isinstance(value, list):
        for index, item in enumerate(value):
            found = _repeated_struct(item, info.item_type, f"{path}[{index}]")
            if found:
                return found
    elif isinstance(info, msgspec.inspect.CustomType) and isinstance(value, _Repeated):
        return path
    return None


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
