"""Makes the reader and the INSERT of records from their dataclass.

A module of the store declares once how its records are stored:

    _TASKS = RowMapper(
        ScheduledTask,
        "scheduled_tasks",
        {
            "folder": "group_folder",  # a column of another name
            "tags": Json("tags_json"),  # stored as JSON
            "schedule": Part(Schedule, {"kind": "schedule_type"}),  # a dataclass in columns of its own
        },
    )

A field that is not named there is the column of its own name. Enums and booleans are converted as the types
of the fields say, all other values are stored as they are.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, Generic, TypeAlias, TypeVar, cast, get_args, get_origin

from orchestrator.store.database import Tx

RecordT = TypeVar("RecordT")
Parameters: TypeAlias = Sequence[object] | Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Column:
    """A column with a conversion: `read` from the database, `write` to it; without `write` it is only read.

    Neither is called for None where the field may be None.
    """

    name: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Json:
    """A column with JSON, which is read as a tuple or a frozenset if the type of the field says so."""

    name: str


@dataclass(frozen=True, slots=True)
class Part:
    """A field that is a dataclass, whose own fields are stored in columns of the same row.

    Where the field may be None, it is None if the column of its first field is NULL. `absent` has the values
    of its columns that are not NULL then.
    """

    record: type
    columns: Mapping[str, str | Column]
    absent: Mapping[str, object] | None = None


Place: TypeAlias = str | Column | Json | Part
"""The column or columns of a field."""


class RowMapper(Generic[RecordT]):
    """Reads records from the rows of a table, and gives the statements that write them.

    Args:
        record: The dataclass of the records.
        table: The table with their rows.
        columns: The places of the fields that are not simply the column of the same name.
        assigned: Columns to which the database assigns the value when a row is inserted.
        unread: Columns without a field; only other statements use them.
        joined: Columns that are not in the table; the queries add them.
    """

    def __init__(
        self,
        record: type[RecordT],
        table: str,
        columns: Mapping[str, Place],
        *,
        assigned: Collection[str] = (),
        unread: Collection[str] = (),
        joined: Collection[str] = (),
    ) -> None:
        self.record = record
        self.table = table
        self.columns = columns
        self.assigned = assigned
        self.unread = unread
        self.joined = joined
        self._readers: dict[tuple[str, ...], Callable[[sqlite3.Row], RecordT]] = {}
        self._writers: dict[type, Callable[[object], dict[str, Any]]] = {}

    async def fetch_all(self, tx: Tx, sql: str, parameters: Parameters = ()) -> list[RecordT]:
        """Return the records of all rows that a query finds."""
        return self.read_all(await tx.execute_fetchall(sql, parameters))

    async def fetch_one(self, tx: Tx, sql: str, parameters: Parameters = ()) -> RecordT | None:
        """Return the record of the first row that a query finds, or None."""
        cursor = await tx.execute(sql, parameters)
        row = await cursor.fetchone()
        return None if row is None else self.read(row)

    def read(self, row: sqlite3.Row) -> RecordT:
        """Return the record of a row. Columns that it has beside those of the fields are ignored."""
        return self._reader(row)(row)

    def read_all(self, rows: Iterable[sqlite3.Row]) -> list[RecordT]:
        """Return the records of the rows of one query."""
        found = rows if isinstance(rows, list) else list(rows)
        return list(map(self._reader(found[0]), found)) if found else []

    async def insert(self, tx: Tx, record: object, **more: object) -> None:
        """Insert a row with the `values` of a record, and `more` values by the names of their columns."""
        row = self.values(record) | more
        await tx.execute(self.insert_sql(row), row)

    def insert_sql(self, row: Mapping[str, object]) -> str:
        """Return the statement that inserts `row`, for those that add a clause to it."""
        return _insert_sql(self.table, tuple(row))

    def upsert_sql(self, row: Mapping[str, object], *, key: str, unchanged: Collection[str] = ()) -> str:
        """Return the statement that inserts `row`, or changes the row with its `key`, but for `unchanged`."""
        changes = ", ".join(
            f"{name} = excluded.{name}" for name in row if name != key and name not in unchanged
        )
        return f"{self.insert_sql(row)} ON CONFLICT ({key}) DO UPDATE SET {changes}"

    def values(self, record: object) -> dict[str, Any]:
        """Return the values of a record by the names of their columns, but for the `assigned` ones.

        A dataclass with fewer fields, such as that of records to add, has its fields in the same columns.
        """
        kind = type(record)
        if kind not in self._writers:
            source = _Source()
            items = (
                f"{column!r}: {value}"
                for column, value in source.values(kind, self._places_in(kind), "record")
                if column not in self.assigned and column not in self.joined
            )
            self._writers[kind] = source.function("record", f"return {{{', '.join(items)}}}")
        return self._writers[kind](record)

    def _places_in(self, kind: type) -> Mapping[str, Place]:
        names = {one.name for one in fields(kind)}
        return {name: place for name, place in self.columns.items() if kind is self.record or name in names}

    def _reader(self, row: sqlite3.Row) -> Callable[[sqlite3.Row], RecordT]:
        # Unpacking a row is several times as fast as asking it for each column. So there is a reader for each
        # order of columns that a query returns.
        names = tuple(row.keys())
        if names not in self._readers:
            source = _Source()
            # Of two columns with one name the first counts, as when the row is asked for it.
            variables = {name: f"c{place}" for place, name in reversed(list(enumerate(names)))}
            record = source.record(self.record, self.columns, variables)
            unpacked = "".join(f"c{place}, " for place in range(len(names)))
            self._readers[names] = source.function("row", f"{unpacked} = row", f"return {record}")
        return self._readers[names]


@cache
def _insert_sql(table: str, columns: tuple[str, ...]) -> str:
    places = ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 - our own names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    type: Any
    """The type of its values other than None."""
    is_optional: bool
    place: Place


def _fields(record: type, columns: Mapping[str, Place]) -> Iterator[_Field]:
    unknown = set(columns) - {one.name for one in fields(record)}
    assert not unknown, f"{record.__name__} has no field {', '.join(sorted(unknown))}"
    for one in fields(record):
        declared = _declared(record.__module__, cast("str", one.type))
        is_optional = NoneType in get_args(declared)
        types = [each for each in get_args(declared) if each is not NoneType] if is_optional else [declared]
        yield _Field(
            name=one.name,
            type=types[0] if len(types) == 1 else Any,
            is_optional=is_optional,
            place=columns.get(one.name, one.name),
        )


@cache
def _declared(module: str, annotation: str) -> Any:
    try:
        return eval(annotation, vars(sys.modules[module]))  # noqa: S307 - an annotation of our own
    except NameError:
        # A type that only type checkers import, because it takes long to load, is no enum and no boolean.
        return Any


class _Source:
    """The source text of a function, with the values that it uses."""

    def __init__(self) -> None:
        self._names: dict[str, object] = {"loads": json.loads, "dumps": _dumps}

    def function(self, argument: str, *lines: str) -> Callable[[Any], Any]:
        """Return the compiled function."""
        text = "\n    ".join((f"def made({argument}):", *lines))
        exec(text, self._names)  # noqa: S102 - made of our own names of columns and fields
        return cast("Callable[[Any], Any]", self._names["made"])

    def record(self, record: type, columns: Mapping[str, Place], variables: Mapping[str, str]) -> str:
        """Return the text that makes a record from the `variables` of its columns."""
        arguments = (f"{one.name}={self._read(one, variables)}" for one in _fields(record, columns))
        return f"{self._name(record)}({', '.join(arguments)})"

    def _read(self, one: _Field, variables: Mapping[str, str]) -> str:
        match one.place:
            case Part():
                column = _first_column(one.place)
                text = self.record(one.place.record, one.place.columns, variables)
            case Json(column):
                text = self._read_json(one.type, variables[column])
            case Column(column, read):
                text = f"{self._name(read)}({variables[column]})"
            case str(column):
                text = self._read_plain(one.type, variables[column])
        variable = variables[column]
        return f"None if {variable} is None else {text}" if one.is_optional and text != variable else text

    def _read_json(self, kind: Any, variable: str) -> str:
        # Most values are empty, and those need no parser.
        outer = get_origin(kind)
        if outer in (tuple, frozenset):
            return f"{outer.__name__}(() if {variable} == '[]' else loads({variable}))"
        return f"({{}} if {variable} == '{{}}' else loads({variable}))"

    def _read_plain(self, kind: Any, variable: str) -> str:
        if kind is bool:
            return f"bool({variable})"
        if isinstance(kind, type) and issubclass(kind, Enum):
            # A dictionary of the members takes a fraction of the time that calling the enum takes.
            return f"{self._name({one.value: one for one in kind})}[{variable}]"
        return variable

    def values(self, record: type, columns: Mapping[str, Place], path: str) -> Iterator[tuple[str, str]]:
        """Yield each written column, and the text that gives its value from the record at `path`."""
        for one in _fields(record, columns):
            value = f"{path}.{one.name}"
            match one.place:
                case Part():
                    absent = one.place.absent or {}
                    for column, text in self.values(one.place.record, one.place.columns, value):
                        guard = f"{self._name(absent.get(column))} if {value} is None else "
                        yield column, guard + text if one.is_optional else text
                case Json(column):
                    yield column, self._guarded(one, value, f"dumps({value})")
                case Column(column, _, write):
                    if write is not None:
                        yield column, self._guarded(one, value, f"{self._name(write)}({value})")
                case str(column):
                    yield column, value

    def _guarded(self, one: _Field, value: str, text: str) -> str:
        return f"None if {value} is None else {text}" if one.is_optional else text

    def _name(self, value: object) -> str:
        name = f"v{len(self._names)}"
        self._names[name] = value
        return name


def _first_column(part: Part) -> str:
    place = next(_fields(part.record, part.columns)).place
    assert isinstance(place, str | Column)
    return place if isinstance(place, str) else place.name


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> object:
    return sorted(value) if isinstance(value, frozenset) else dict(value)
