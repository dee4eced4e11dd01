"""`GET /api/openapi.json`: every route in OpenAPI 3.1, made from the models of the code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator import __version__
from orchestrator.groups.registration import Registration
from orchestrator.web.api.chat import ChatRequest
from orchestrator.web.api.events import EventQuery
from orchestrator.web.api.groups import ChatQuery, FurtherChat, Speech
from orchestrator.web.api.lists import RESOURCES, ApiResource
from orchestrator.web.api.reminders import NewReminder, NewTime
from orchestrator.web.api.schemas import ApiSchema
from orchestrator.web.api.tasks import NewTask

PATH = "/api/openapi.json"
ABOUT = "What Andy does and has done, for programs on this machine. The token is in data/token."
SCHEMAS = "#/components/schemas/"


class ErrorReason(ApiSchema):
    code: str
    message: str


class ErrorDocument(ApiSchema):
    """Why a request was refused, in one line that names what to do."""

    error: ErrorReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A route that is not one of the resources: what it takes, and which codes it gives when all is well."""

    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    codes: tuple[int, ...] = (200,)
    media: str = "application/json"


OPERATIONS = (
    Operation(
        method="post",
        path="/chat",
        summary="Say something to a group; 202 with its place when the reply is not there in time.",
        body=ChatRequest,
        codes=(200, 202),
    ),
    Operation(
        method="post", path="/chat/{group}/opened", summary="Say that somebody is about to write to a group."
    ),
    Operation(method="get", path="/messages/{id}", summary="Where a message is."),
    Operation(
        method="get",
        path="/events",
        summary="What happens from now on, as server-sent events.",
        query=EventQuery,
        media="text/event-stream",
    ),
    Operation(method="get", path="/status", summary="What runs, waits and is stuck."),
    Operation(method="get", path="/healthz", summary="Whether Andy runs; needs no token."),
    Operation(method="get", path="/metrics", summary="Counts for Prometheus.", media="text/plain"),
    Operation(method="get", path=PATH, summary="This description."),
    Operation(
        method="get",
        path="/api/groups/{folder}/files/{name}",
        summary="A file that came with a message, by its name in attachments/.",
        media="application/octet-stream",
    ),
    Operation(
        method="get",
        path="/api/messages/{group}/{id}/file",
        summary="The file that Andy sent with a message, while its copy is kept.",
        media="application/octet-stream",
    ),
    Operation(method="get", path="/groups", summary="The registered groups."),
    Operation(method="post", path="/groups", summary="Register a chat.", body=Registration, codes=(201,)),
    Operation(method="delete", path="/groups/{folder}", summary="Take a chat's agent away."),
    Operation(
        method="post",
        path="/groups/{folder}/chats",
        summary="Give a group one more chat, or have one of its chats be told what nobody asked for.",
        body=FurtherChat,
    ),
    Operation(
        method="delete",
        path="/groups/{folder}/chats",
        summary="Take one of several chats from a group.",
        query=ChatQuery,
    ),
    Operation(
        method="post",
        path="/groups/{folder}/configured",
        summary="Have Andy look at a configuration that was changed in the store.",
    ),
    Operation(
        method="post",
        path="/groups/{folder}/say",
        summary="Say a text in a chat as Andy, word for word.",
        body=Speech,
        codes=(202,),
    ),
    Operation(method="get", path="/reminders", summary="Reminders to come."),
    Operation(method="post", path="/reminders", summary="Set a reminder.", body=NewReminder, codes=(201,)),
    Operation(method="post", path="/reminders/{id}/move", summary="Send it at another time.", body=NewTime),
    Operation(method="post", path="/reminders/{id}/cancel", summary="Send it no more."),
    Operation(method="post", path="/tasks", summary="Make a scheduled task.", body=NewTask, codes=(201,)),
    Operation(method="post", path="/tasks/{id}/{action}", summary="pause, resume, cancel or run a task."),
    Operation(
        method="post", path="/loops/{folder}/{action}", summary="on, off, pause, resume or wake a loop."
    ),
    Operation(method="get", path="/whatsapp/pair", summary="The code that pairs WhatsApp."),
    Operation(method="post", path="/whatsapp/pair", summary="Ask for a new code.", codes=(202,)),
    Operation(method="get", path="/dashboards/{folder}", summary="What stands on a dashboard."),
    Operation(method="post", path="/dashboards/{folder}/tools/{tool}", summary="Call a tool of a dashboard."),
    Operation(
        method="post",
        path="/dashboards/{folder}/worker",
        summary="Have a model look at a dashboard now.",
        codes=(202,),
    ),
)


def openapi_route() -> Route:
    async def answer(_: Request) -> Response:
        return JSONResponse(description())

    return Route(PATH, answer)


def description() -> dict[str, Any]:
    """Return the whole document. Pure."""
    models: set[type[BaseModel]] = {resource.answer for resource in RESOURCES} | {ErrorDocument}
    models |= {one.body for one in OPERATIONS if one.body is not None}
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=SCHEMAS + "{model}",
    )
    paths: dict[str, dict[str, Any]] = {}
    for resource in RESOURCES:
        paths.setdefault(resource.path, {})["get"] = _resource(resource)
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Andy", "version": __version__, "description": ABOUT},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _resource(resource: ApiResource) -> dict[str, Any]:
    answer = {"application/json": {"schema": {"$ref": SCHEMAS + _name(resource.answer)}}}
    return {
        "summary": resource.summary,
        "parameters": [*_path_parameters(resource.path), *_query_parameters(resource.query)],
        "responses": {"200": {"description": "The answer.", "content": answer}, **_refusals()},
    }


def _operation(one: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": one.summary,
        "parameters": [*_path_parameters(one.path), *(_query_parameters(one.query) if one.query else ())],
        "responses": {
            **{str(code): {"description": "Done.", "content": {one.media: {}}} for code in one.codes},
            **_refusals(),
        },
    }
    if one.body is not None:
        content = {"application/json": {"schema": {"$ref": SCHEMAS + _name(one.body)}}}
        found["requestBody"] = {"required": True, "content": content}
    if one.path == "/healthz":
        found["security"] = []
    return found


def _refusals() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": SCHEMAS + ErrorDocument.__name__}}}
    return {"4XX": {"description": "It was refused, and why.", "content": content}}


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for part in path.split("/"):
        if part.startswith("{"):
            yield {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(query: type[BaseModel]) -> Iterator[dict[str, Any]]:
    schema = query.model_json_schema()
    for name, field in schema.get("properties", {}).items():
        about = {key: value for key, value in field.items() if key not in ("title", "description")}
        told = {"description": field["description"]} if "description" in field else {}
        is_required = name in schema.get("required", ())
        yield {"name": name, "in": "query", "required": is_required, "schema": _whole(about, schema), **told}


def _whole(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Put what a parameter refers to in its place: parameters share nothing."""
    definitions = schema.get("$defs", {})
    if "$ref" in field:
        return dict(definitions[field["$ref"].rpartition("/")[2]])
    if "anyOf" in field:
        return {**field, "anyOf": [_whole(one, schema) for one in field["anyOf"]]}
    return field


def _name(model: type[BaseModel]) -> str:
    """The name under which pydantic lists a model: that of a generic one loses its brackets."""
    return model.__name__.replace("[", "_").replace("]", "_")
