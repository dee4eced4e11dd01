"""The schemas of `/api` for OpenAPI, made from the views of the reports; tests hold both together.

Nothing is checked against these models while serving: a row is sent as its report made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    NotRequired,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import BaseModel, ConfigDict, Field, create_model

from orchestrator.reports.upcoming import UpcomingView

R = TypeVar("R")
PART = "Part"
"""The end of the name of a view that is an open object in OpenAPI: its fields are promised to no client."""
LEFT_OUT_BEFORE: Mapping[type, Mapping[str, object]] = {
    UpcomingView: {"times": 1, "last_due": None, "text": "", "at": []},
}
"""Values that clients may take for fields that an earlier Andy did not send, by their view."""
_MADE: dict[type, type[ApiSchema]] = {}
"""The schema of each view, made once: two models of one name would get longer names in OpenAPI."""


class RowPage(TypedDict, Generic[R]):
    """One page of a list, as it is sent."""

    rows: Sequence[R]
    next: int | None


class ApiSchema(BaseModel):
    """An object that has these fields and no others. Names that end in `_ms` are epoch milliseconds, UTC."""

    model_config = ConfigDict(extra="forbid")


class ListPage(ApiSchema, Generic[R]):
    """One page of a list; `next` is the `cursor` of the page after it, null on the last one."""

    rows: list[R]
    next: int | None


def schema_of(view: type) -> type[ApiSchema]:
    """Return the pydantic schema of a view, which is a `TypedDict`: `TurnSchema` for `TurnView`.

    A text in `Annotated` is the description of its field. A field that is `NotRequired` may be null, too.
    Further calls for a view return the same schema.
    """
    if view in _MADE:
        return _MADE[view]
    defaults = LEFT_OUT_BEFORE.get(view, {})  # for fields that an earlier Andy did not send
    fields: dict[str, Any] = {}
    for field, hint in get_type_hints(view, include_extras=True).items():
        is_optional = get_origin(hint) is NotRequired
        kind = get_args(hint)[0] if is_optional else hint
        kind, text = get_args(kind) if get_origin(kind) is Annotated else (kind, None)
        kind = _described(kind)
        default = defaults.get(field, ...)  # `...` makes a field required in pydantic
        if is_optional:
            kind, default = kind | None, None
        fields[field] = (kind, Field(default, description=text))
    name = view.__name__.removesuffix("View") + "Schema"
    _MADE[view] = create_model(name, __base__=ApiSchema, __doc__=view.__doc__, **fields)
    return _MADE[view]


def answer_schema(answer: Any) -> type[ApiSchema]:
    """Return the schema of the answer of a resource, given its type: a view, or a `RowPage` of a view."""
    if get_origin(answer) is not RowPage:
        return schema_of(answer)
    row = schema_of(*get_args(answer))
    return ListPage[row]  # type: ignore[valid-type]


def _described(hint: Any) -> Any:
    """Return a type with each view (`TypedDict`) in it replaced by its schema, also inside lists and unions.

    A view whose name ends in `PART` is replaced by a dict with any values: no client may rely on its fields.
    """
    if is_typeddict(hint):
        return dict[str, object] if hint.__name__.endswith(PART) else schema_of(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return reduce(or_, map(_described, parts))  # joins the members of the union by `|` again
    return hint if origin is None else origin[tuple(map(_described, parts))]
