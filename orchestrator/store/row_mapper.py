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
        """Compiled functions that read a row, by the names of its columns."""
        self._writers: dict[type, Callable[[object], dict[str, Any]]] = {}
        """Compiled functions that return the values of a record, by its class: `record` or one like it that
        has only some of its fields.
        """

    async def fetch_all(self, tx: Tx, sql: str, parameters: Parameters = ()) -> list[RecordT]:
        """Return the records of all rows that the SELECT `sql` finds, in their order."""
        return self.read_all(await tx.execute_fetchall(sql, parameters))

    async def fetch_one(self, tx: Tx, sql: str, parameters: Parameters = ()) -> RecordT | None:
        """Return the record of the first row that the statement `sql` returns, or None if it returns none."""
        cursor = await tx.execute(sql, parameters)
        row = await cursor.fetchone()
        return None if row is None else self.read(row)

    def read(self, row: sqlite3.Row) -> RecordT:
        """Return the record that a row stores. Columns that are no field of the record are ignored."""
        return self._reader(row)(row)

    def read_all(self, rows: Iterable[sqlite3.Row]) -> list[RecordT]:
        """Return the records of rows that come from the same query, in their order."""
        listed_rows = rows if isinstance(rows, list) else list(rows)
        # All rows of a query have the same columns, so the reader of the first one reads them all.
        return list(map(self._reader(listed_rows[0]), listed_rows)) if listed_rows else []

    async def insert(self, tx: Tx, record: object, **other_values: object) -> None:
        """Insert a record as a row. `other_values` are values of further columns, by name."""
        row = self.values(record) | other_values
        await tx.execute(self.insert_sql(row), row)

    def insert_sql(self, row: Mapping[str, object]) -> str:
        """Return the INSERT statement for `row`, which maps column names to values.

        Its parameters have the names of the columns. Callers may append a clause, such as `RETURNING *`.
        """
        return _insert_sql(self.table, tuple(row))

    def upsert_sql(self, row: Mapping[str, object], *, key: str, unchanged: Collection[str] = ()) -> str:
        """Return the statement that inserts `row`, or updates the row with the same value in the column
        `key`.

        `row` maps column names to values. An update leaves the columns in `unchanged` as they are.
        """
        changes = ", ".join(
            f"{name} = excluded.{name}" for name in row if name != key and name not in unchanged
        )
        return f"{self.insert_sql(row)} ON CONFLICT ({key}) DO UPDATE SET {changes}"

    def values(self, record: object) -> dict[str, Any]:
        """Return the values to write for a record, keyed by column name.

        Columns that the database assigns, or that only queries add, are left out. `record` may also be of a
        smaller dataclass that has some of the same fields, such as a record that is not stored yet.
        """
        kind = type(record)
        # The function that returns them is compiled once for each dataclass.
        if kind not in self._writers:
            source = _Source()
            items = (
                f"{column!r}: {expression}"
                for column, expression in source.write_expressions(kind, self._places_in(kind), "record")
                if column not in self.assigned and column not in self.joined
            )
            self._writers[kind] = source.compile_function("record", f"return {{{', '.join(items)}}}")
        return self._writers[kind](record)

    def _places_in(self, kind: type) -> Mapping[str, Place]:
        """Return the declared columns of the fields of the dataclass `kind`, keyed by field.

        `kind` is the record's own class, or one with only some of its fields. For the own class all
        declarations are returned, so that `_fields` reports a declared name that is no field.
        """
        names = {field.name for field in fields(kind)}
        return {name: place for name, place in self.columns.items() if kind is self.record or name in names}

    def _reader(self, row: sqlite3.Row) -> Callable[[sqlite3.Row], RecordT]:
        """Return the function that makes a record from any row with the same columns as `row`."""
        # Unpacking a row is several times as fast as asking it for each column. So a reader is compiled once
        # for each order of columns that a query returns.
        names = tuple(row.keys())
        if names not in self._readers:
            source = _Source()
            # Of two columns with the same name the first counts, as in `row[name]`: in the reversed order it
            # is put into the dictionary last.
            variables = {name: f"c{index}" for index, name in reversed(list(enumerate(names)))}
            record = source.record_expression(self.record, self.columns, variables)
            # The function has two lines, such as `c0, c1, = row` and `return Record(id=c0, name=c1)`.
            unpacked = "".join(f"c{index}, " for index in range(len(names)))
            self._readers[names] = source.compile_function("row", f"{unpacked} = row", f"return {record}")
        return self._readers[names]


@cache
def _insert_sql(table: str, columns: tuple[str, ...]) -> str:
    """Return the statement that inserts a row with these columns; its parameters have the same names."""
    parameters = ", ".join(f":{name}" for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({parameters})"  # noqa: S608 - our own names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A field of a record's dataclass, with the column or columns in which it is stored."""

    name: str
    type: Any
    """The type of its values other than None."""
    is_optional: bool
    place: Place


def _fields(record: type, columns: Mapping[str, Place]) -> Iterator[_Field]:
    """Yield a description of each field of the dataclass `record`, with where it is stored.

    `columns` has the columns of fields that are not stored under their own names; a name in it that is no
    field is a programming error.
    """
    unknown = set(columns) - {field.name for field in fields(record)}
    assert not unknown, f"{record.__name__} has no field {', '.join(sorted(unknown))}"
    for column_field in fields(record):
        declared = _declared(record.__module__, cast("str", column_field.type))
        is_optional = NoneType in get_args(declared)
        # The types of its values other than None. Values of a union such as `int | str` need no conversion.
        types = (
            [member for member in get_args(declared) if member is not NoneType] if is_optional else [declared]
        )
        yield _Field(
            name=column_field.name,
            type=types[0] if len(types) == 1 else Any,
            is_optional=is_optional,
            place=columns.get(column_field.name, column_field.name),
        )


@cache
def _declared(module: str, annotation: str) -> Any:
    """Return the type that an annotation names in a module; `Any` if only type checkers import that type."""
    try:
        return eval(annotation, vars(sys.modules[module]))  # noqa: S307 - an annotation of our own
    except NameError:
        # A type that only type checkers import, because it takes long to load, is no enum and no boolean.
        return Any


class _Source:
    """Writes the source text of a function, and holds the values that the text uses by name."""

    def __init__(self) -> None:
        self._names: dict[str, object] = {"loads": json.loads, "dumps": _dumps}

    def compile_function(self, argument: str, *lines: str) -> Callable[[Any], Any]:
        """Compile and return a function of one `argument`, whose body has these `lines` of Python."""
        text = "\n    ".join((f"def made({argument}):", *lines))
        exec(text, self._names)  # noqa: S102 - made of our own names of columns and fields
        return cast("Callable[[Any], Any]", self._names["made"])

    def record_expression(
        self, record: type, columns: Mapping[str, Place], variables: Mapping[str, str]
    ) -> str:
        """Return the Python expression that makes an instance of the dataclass `record`.

        `columns` has the columns of fields that are not stored under their own names, `variables` the name of
        the variable that has the value of each column.
        """
        arguments = (
            f"{field.name}={self._read_expression(field, variables)}" for field in _fields(record, columns)
        )
        return f"{self._name_for(record)}({', '.join(arguments)})"

    def _read_expression(self, field: _Field, variables: Mapping[str, str]) -> str:
        """Return the Python expression that makes the value of `field` from the `variables` of its columns.

        For a field that may be None, the expression gives None where the column (for a part, its first
        column) is NULL.
        """
        match field.place:
            case Part():
                column = _first_column(field.place)
                text = self.record_expression(field.place.record, field.place.columns, variables)
            case Json(column):
                text = self._read_json(field.type, variables[column])
            case Column(column, read):
                text = f"{self._name_for(read)}({variables[column]})"
            case str(column):
                text = self._read_plain(field.type, variables[column])
        variable = variables[column]
        is_converted = text != variable
        # A column that is not converted gives None by itself.
        return f"None if {variable} is None else {text}" if field.is_optional and is_converted else text

    def _read_json(self, kind: Any, variable: str) -> str:
        """Return the Python expression that parses the JSON in `variable` to a value of the type `kind`.

        A tuple and a frozenset are stored as a JSON list, a value of any other type as a JSON object.
        """
        # Most values are empty, and those need no parser.
        outer = get_origin(kind)
        if outer in (tuple, frozenset):
            return f"{outer.__name__}(() if {variable} == '[]' else loads({variable}))"
        return f"({{}} if {variable} == '{{}}' else loads({variable}))"

    def _read_plain(self, kind: Any, variable: str) -> str:
        """Return the Python expression that converts `variable` to the type `kind`, if it is a boolean or an
        enum.

        Values of other types need no conversion.
        """
        if kind is bool:
            return f"bool({variable})"
        if isinstance(kind, type) and issubclass(kind, Enum):
            # A dictionary of the members takes a fraction of the time that calling the enum takes.
            return f"{self._name_for({member.value: member for member in kind})}[{variable}]"
        return variable

    def write_expressions(
        self, record: type, columns: Mapping[str, Place], path: str
    ) -> Iterator[tuple[str, str]]:
        """Yield each column to write, and the Python expression for its value.

        `path` is the expression for the record of the class `record`, such as `record.schedule`. `columns`
        has the columns of fields that are not stored under their own names. A column without a way to write
        it is left out. Where the value of a `Part` is None, its columns get the values in its `absent`, and
        None if they are not in there.
        """
        for field in _fields(record, columns):
            value = f"{path}.{field.name}"
            match field.place:
                case Part():
                    absent = field.place.absent or {}
                    for column, text in self.write_expressions(
                        field.place.record, field.place.columns, value
                    ):
                        if field.is_optional:
                            if_absent = self._name_for(absent.get(column))
                            yield column, f"{if_absent} if {value} is None else {text}"
                        else:
                            yield column, text
                case Json(column):
                    yield column, self._unless_none(field, value, f"dumps({value})")
                case Column(column, _, write):
                    if write is not None:
                        yield column, self._unless_none(field, value, f"{self._name_for(write)}({value})")
                case str(column):
                    yield column, value

    def _unless_none(self, field: _Field, value: str, text: str) -> str:
        """Return the expression `text`; for an optional field, one that gives None where `value` is None."""
        return f"None if {value} is None else {text}" if field.is_optional else text

    def _name_for(self, value: object) -> str:
        """Store a value for the compiled function, and return the new name by which its text refers to it."""
        name = f"v{len(self._names)}"
        self._names[name] = value
        return name


def _first_column(part: Part) -> str:
    """Return the name of the column that stores the first field of a part.

    The whole part is None where this column is NULL.
    """
    place = next(_fields(part.record, part.columns)).place
    assert isinstance(place, str | Column)
    return place if isinstance(place, str) else place.name


def _dumps(value: Any) -> str:
    """Return a value as JSON text."""
    return json.dumps(value, ensure_ascii=False, default=_jsonable)


def _jsonable(value: Any) -> object:
    """Return a value that JSON can write: a sorted list for a frozenset, a dict for any other mapping.

    `json.dumps` calls this for values of types that it does not know.
    """
    return sorted(value) if isinstance(value, frozenset) else dict(value)
