"""Records and their columns: each record comes back as it was written, and no column is forgotten."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sqlite3
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import NoneType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runner.wire.order import RestoreMode
from orchestrator import store
from orchestrator.store.database import migrations
from orchestrator.store.row_mapper import Column, Json, Part, RowMapper


def mappers() -> dict[str, RowMapper]:
    found = {}
    for module in pkgutil.walk_packages(store.__path__, "orchestrator.store."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, RowMapper):
                found.setdefault(
                    id(value), (f"{module.name.removeprefix('orchestrator.store.')}.{name}", value)
                )
    return dict(found.values())


MAPPERS = mappers()
every_mapper = pytest.mark.parametrize("mapper", MAPPERS.values(), ids=MAPPERS)


@pytest.fixture(scope="module")
def database():
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    for script in migrations():
        connection.executescript(script)
    yield connection
    connection.close()


def columns_of(database, table):
    return {row["name"] for row in database.execute(f"PRAGMA table_info({table})")}


def types_of(record):
    names = {**vars(importlib.import_module(record.__module__)), "RestoreMode": RestoreMode}
    return typing.get_type_hints(record, globalns=names)


EMPTY_LIST = "[]"
INTEGERS = st.integers(-(1 << 62), 1 << 62)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.dictionaries(TEXTS, st.one_of(st.none(), INTEGERS, TEXTS, st.lists(TEXTS, max_size=2)), max_size=2)


PLAIN = {
    int: INTEGERS,
    str: TEXTS,
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    Path: TEXTS.filter(lambda text: str(Path(text)) == text).map(Path),
}


def values_of(kind):
    """Return a strategy for the values of a field's type."""
    if isinstance(kind, typing.NewType):
        return values_of(kind.__supertype__)
    outer = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    match outer or kind:
        case typing.Literal:
            return st.sampled_from(arguments)
        case _ if NoneType in arguments:
            return st.one_of(st.none(), *(values_of(each) for each in arguments if each is not NoneType))
        case _ if outer is tuple:
            return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
        case _ if outer is frozenset:
            return st.frozensets(values_of(arguments[0]), max_size=2)
        case _ if outer in (Mapping, dict):
            return JSON
        case _ if dataclasses.is_dataclass(kind):
            return records_of(kind)
    return PLAIN[kind] if kind in PLAIN else st.sampled_from(kind)


def records_of(record):
    return st.builds(record, **{name: values_of(kind) for name, kind in types_of(record).items()})


def columns_in(mapper: RowMapper) -> set[str]:
    """Return the columns that a mapper reads."""
    names = set()
    places = [mapper.columns.get(one.name, one.name) for one in dataclasses.fields(mapper.record)]
    for place in places:
        match place:
            case Part(record, columns):
                names |= columns_in(RowMapper(record, mapper.table, columns))
            case Json(name) | Column(name) | str(name):
                names.add(name)
    return names


@every_mapper
def test_every_column_of_a_table_is_read_or_named_as_not_read(mapper, database):
    read = columns_in(mapper)

    assert read - set(mapper.joined) | set(mapper.unread) == columns_of(database, mapper.table)
    assert not read & set(mapper.unread), "these are read"
    assert set(mapper.assigned) <= read
    assert set(mapper.joined) <= read


@every_mapper
@settings(max_examples=20)
@given(data=st.data())
def test_a_record_comes_back_as_it_was_written(mapper, database, data):
    record = data.draw(records_of(mapper.record))

    back = mapper.read(row_of(database, mapper, record))

    unwritten = fields_without_a_written_column(mapper)
    assert back == replace(record, **{name: getattr(back, name) for name in unwritten})


def row_of(database, mapper, record):
    """Return the row that a record is written as, in a copy of the table without its conditions."""
    values = mapper.values(record)
    unwritten = dict.fromkeys(mapper.joined, EMPTY_LIST) | dict.fromkeys(mapper.assigned, 1)
    database.execute(
        f"CREATE TEMP TABLE copy ({', '.join({*columns_of(database, mapper.table), *unwritten})})"
    )
    try:
        row = values | unwritten
        database.execute(mapper.insert_sql(row).replace(f"INTO {mapper.table} ", "INTO copy "), row)
        return database.execute("SELECT * FROM copy").fetchone()
    finally:
        database.execute("DROP TABLE copy")


def fields_without_a_written_column(mapper):
    places = {one.name: mapper.columns.get(one.name, one.name) for one in dataclasses.fields(mapper.record)}
    return [
        name
        for name, place in places.items()
        if (isinstance(place, Column) and place.write is None)
        or getattr(place, "name", place) in (*mapper.assigned, *mapper.joined)
    ]


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Frame:
    width: int
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Picture:
    name: str
    is_framed: bool
    frame: Frame | None = None
    tags: tuple[str, ...] = ()
    size: str | None = None


PICTURES = RowMapper(
    Picture,
    "pictures",
    {
        "name": "title",
        "frame": Part(Frame, {"width": "frame_width"}, absent={"colour": "none"}),
        "tags": Json("tags_json"),
        "size": Column("size_text", str.upper, str.lower),
    },
    assigned=("is_framed",),
)


@pytest.fixture
def pictures():
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    connection.execute(
        "CREATE TABLE pictures (title, is_framed DEFAULT 1, frame_width, colour, tags_json, size_text)"
    )
    yield connection
    connection.close()


def test_an_insert_writes_all_columns_but_those_that_the_database_assigns(pictures):
    picture = Picture("a", is_framed=False, tags=("봄",), size="BIG")

    row = PICTURES.values(picture)
    pictures.execute(PICTURES.insert_sql(row), row)

    (row,) = pictures.execute("SELECT * FROM pictures")
    assert tuple(row) == ("a", 1, None, "none", '["봄"]', "big")
    assert PICTURES.read(row) == replace(picture, is_framed=True)


def test_columns_are_read_by_name_in_whichever_order_a_query_has_them(pictures):
    pictures.execute("INSERT INTO pictures VALUES ('a', 0, 3, 'red', '[]', NULL)")

    rows = pictures.execute(
        """
        SELECT 9 AS other, colour, frame_width, tags_json, size_text, is_framed, title, 'b' AS title
        FROM pictures
        """
    )

    assert PICTURES.read_all(rows) == [Picture("a", is_framed=False, frame=Frame(3))]


def test_a_missing_column_is_named(pictures):
    pictures.execute("INSERT INTO pictures VALUES ('a', 0, 3, 'red', '[]', NULL)")

    with pytest.raises(KeyError, match="is_framed"):
        PICTURES.read(pictures.execute("SELECT title FROM pictures").fetchone())


def test_a_declaration_of_an_unknown_field_is_refused():
    with pytest.raises(AssertionError, match="Picture has no field nmae"):
        RowMapper(Picture, "pictures", {"nmae": "title"}).values(Picture("a", is_framed=True))


def test_a_record_to_add_has_its_fields_in_the_same_columns(pictures):
    @dataclass
    class NewPicture:
        name: str
        tags: tuple[str, ...] = ()

    assert PICTURES.values(NewPicture("a", tags=("b",))) == {"title": "a", "tags_json": '["b"]'}
