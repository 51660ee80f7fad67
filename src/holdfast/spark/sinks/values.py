"""How Spark's values become a database's, column by column. No SQL, no connection.

Two steps, so that no time zone ever takes part. In Spark, each column becomes one of a few plain
*carriers* (a TIMESTAMP travels as microseconds since 1970, a struct as JSON text). In Python, a
database's dialect turns carriers into what it stores.

    kind           carrier              of Spark's
    smallint int bigint   int           BYTE, SHORT; INT; LONG
    float double   float                FLOAT, DOUBLE
    decimal(p,s)   Decimal              DECIMAL
    boolean        bool                 BOOLEAN
    string         str                  STRING, CHAR, VARCHAR
    binary         bytes                BINARY
    date           date                 DATE
    timestamp      int, µs since 1970   TIMESTAMP
    timestamp_ntz  datetime             TIMESTAMP_NTZ
    json           str, JSON            ARRAY, MAP, STRUCT, VARIANT
    text           str, as Spark casts  intervals, TIME, NULL
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_KINDS = {
    "ByteType": "smallint",
    "ShortType": "smallint",
    "IntegerType": "int",
    "LongType": "bigint",
    "FloatType": "float",
    "DoubleType": "double",
    "BooleanType": "boolean",
    "StringType": "string",
    "CharType": "string",
    "VarcharType": "string",
    "BinaryType": "binary",
    "DateType": "date",
    "TimestampType": "timestamp",
    "TimestampNTZType": "timestamp_ntz",
    "ArrayType": "json",
    "MapType": "json",
    "StructType": "json",
    "VariantType": "json",
    "DayTimeIntervalType": "text",
    "YearMonthIntervalType": "text",
    "CalendarIntervalType": "text",
    "TimeType": "text",
    "NullType": "text",
}

# Inside JSON a TIMESTAMP is text, and must be the same text wherever the query runs.
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a batch: its name, and the kind of its values."""

    name: str
    kind: str


def fields_of(schema: StructType) -> tuple[Field, ...]:
    """The columns of a batch. Raises InvalidInputError for a type no database of ours could hold."""
    return tuple(Field(field.name, _kind_of(field.name, field.dataType)) for field in schema.fields)


def carriers(batch: DataFrame, fields: Sequence[Field]) -> DataFrame:
    """``batch`` with every value as its carrier, and the columns known by number alone."""
    from pyspark.sql.functions import col

    # By position: two columns may differ in nothing but case.
    numbered = batch.toDF(*(f"c{number}" for number in range(len(fields))))
    return numbered.select(
        *(_carrier(col(f"c{number}"), field.kind).alias(f"c{number}") for number, field in enumerate(fields))
    )


def bound(
    row: Sequence[Any], binders: Sequence[Callable[[Any], Any]], fields: Sequence[Field]
) -> tuple[Any, ...]:
    """A row of carriers as bound values. Raises InvalidInputError, naming the column."""
    try:
        return tuple(None if value is None else bind(value) for bind, value in zip(binders, row, strict=True))
    except OverflowError as error:
        raise _no_form(row, binders, fields) from error


def timestamp_text(microseconds: int) -> str:
    """``2026-01-01 00:00:05`` in UTC, with six more digits where they are not all zero.

    So text sorts as time does. Raises OverflowError outside of the years 1 to 9999.
    """
    return datetime_text((_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None))


def datetime_text(moment: datetime) -> str:
    return moment.isoformat(" ")


def _no_form(
    row: Sequence[Any], binders: Sequence[Callable[[Any], Any]], fields: Sequence[Field]
) -> InvalidInputError:
    """Which value it was that has no form in a database: a time outside of the years 1 to 9999."""
    for value, bind, field in zip(row, binders, fields, strict=True):
        if value is None:
            continue
        try:
            bind(value)
        except OverflowError:
            return InvalidInputError(f"column {field.name!r} holds a time outside of the years 1 to 9999")
    raise AssertionError("no value of the row overflows")


def _kind_of(name: str, type_: DataType) -> str:
    kind = _KINDS.get(type(type_).__name__)
    if kind is not None:
        return kind
    if type(type_).__name__ == "DecimalType":
        return type_.simpleString()
    raise InvalidInputError(
        f"column {name!r} has the type {type_.simpleString()}, which a Database sink cannot store"
    ).with_hint("cast it in the query, to STRING or to a struct of plain types")


def _carrier(column: Column, kind: str) -> Any:
    from pyspark.sql.functions import to_json, unix_micros

    if kind == "timestamp":
        return unix_micros(column)
    if kind == "json":
        return to_json(column, _JSON_OPTIONS)
    if kind == "text":
        return column.cast("string")
    return column
