"""Count what the collections of a running host hold, by the class and the attribute that they belong to."""

from __future__ import annotations

import asyncio
import functools
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

OWN = ("orchestrator.", "agent_runner.")
"""The beginnings of the modules whose objects are looked into."""
LISTED = 5_000
"""Entries of one collection that are looked into."""


def entries_of(tasks: Iterable[asyncio.Task[Any]]) -> Counter[str]:
    """Return the number of entries in each collection that can be reached from what tasks work with.

    Collections of all objects of a class are counted together, by the class and the attribute.
    A deque with a bound is left out: it holds what it may.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    left: deque[tuple[str, object]] = deque(part for task in tasks for part in _locals(task))
    while left:
        place, value = left.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _is_collection(value):
            if not (isinstance(value, deque) and value.maxlen is not None):
                found[place] += len(value)
            left.extend((place, one) for one in _entries(value))
        else:
            left.extend(_parts(place, value))
    return found


def _locals(task: asyncio.Task[Any]) -> Iterator[tuple[str, object]]:
    """Yield the local variables of a task, from its outermost call to the one that waits."""
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        if frame.f_globals.get("__name__", "").startswith(OWN):
            for name, value in frame.f_locals.items():
                yield f"{frame.f_code.co_qualname}.{name}", value
        waiting = waiting.cr_await


def _is_collection(value: object) -> bool:
    return isinstance(value, Mapping | AbstractSet | deque) or (
        isinstance(value, Sequence) and not _is_text(value)
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes | bytearray | memoryview | range)


def _entries(value: Any) -> list[object]:
    """Return what is in a collection, keys and values."""
    entries = [*value.keys(), *value.values()] if isinstance(value, Mapping) else list(value)
    return [one for one in entries[:LISTED] if not _is_text(one)]


def _parts(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield what an object of the program holds, and where; nothing of others' objects."""
    match value:
        case functools.partial():
            yield from ((place, part) for part in (value.func, value.args, value.keywords))
        case types.MethodType():
            yield place, value.__self__
        case types.FunctionType():
            cells = (cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
            yield from ((f"{value.__qualname__}.<closure>", one) for one in cells)
        case type() | types.ModuleType():
            return
        case _ if type(value).__module__.startswith(OWN):
            for name in _attributes(value):
                if (part := getattr(value, name, None)) is not None:
                    yield f"{type(value).__name__}.{name}", part


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _attributes(value: object) -> list[str]:
    slots = [name for one in type(value).__mro__ for name in getattr(one, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", {})]
