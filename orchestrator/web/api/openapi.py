"""`GET /api/openapi.json`: every route in OpenAPI 3.1, made from the models of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator import __version__
from orchestrator.dashboard.feature import ToolAnswerView
from orchestrator.groups.name_and_trigger import GroupProfile
from orchestrator.groups.registration import Registration
from orchestrator.loop.service import ACTIONS
from orchestrator.web.api.chat import ChatRequest
from orchestrator.web.api.events import EventQuery
from orchestrator.web.api.groups import AccessAnswer, ChatQuery, FurtherChat, Speech
from orchestrator.web.api.lists import RESOURCES, ApiResource
from orchestrator.web.api.queries import PageQuery
from orchestrator.web.api.reminders import NewReminder, NewTime
from orchestrator.web.api.schemas import ApiSchema, schema_of
from orchestrator.web.api.tasks import NewTask
from orchestrator.web.api.undo import UndoRequest

PATH = "/api/openapi.json"
ABOUT = (
    "Reads what Andy does and did, and changes it, for programs on this machine. The token is in data/token."
)
Document = dict[str, Any]
"""A part of an OpenAPI document, whose form its specification says."""
SCHEMAS = "#/components/schemas/"
"""The beginning of a reference to a schema of the document."""


class ErrorReason(ApiSchema):
    code: str
    message: str


class ErrorDocument(ApiSchema):
    """The reason why a request was refused, in one line that names what to do."""

    error: ErrorReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A route that is no resource: its parameters and body, and the status codes of its success."""

    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    codes: tuple[int, ...] = (200,)
    media: tuple[str, ...] = ("application/json",)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The allowed values of a path parameter, if they are few."""
    answer: type[BaseModel] | None = None
    """The shape of the answer, also of one with status 409 if it has the same shape."""


OPERATIONS = (
    Operation(
        method="post",
        path="/chat",
        summary="Send a message to a group; 202 with its place in the queue if the reply takes longer.",
        body=ChatRequest,
        codes=(200, 202),
    ),
    Operation(
        method="post",
        path="/chat/{group}/opened",
        summary="Announce that somebody is about to write to a group, so that a container is started ahead.",
    ),
    Operation(
        method="get",
        path="/messages/{id}",
        summary="The state of a message and, once it is answered, its reply.",
    ),
    Operation(
        method="get",
        path="/events",
        summary="The events of the running Andy from now on, as server-sent events.",
        query=EventQuery,
        media=("text/event-stream",),
    ),
    Operation(method="get", path="/status", summary="The running, waiting and stuck parts of Andy."),
    Operation(method="get", path="/healthz", summary="Whether Andy runs; needs no token."),
    Operation(method="get", path="/metrics", summary="Counts for Prometheus.", media=("text/plain",)),
    Operation(method="get", path=PATH, summary="This OpenAPI document."),
    Operation(
        method="get",
        path="/api/groups/{folder}/files/{name}",
        summary="A file that came with a message, by its name in attachments/.",
        media=("application/octet-stream",),
    ),
    Operation(
        method="get",
        path="/api/messages/{group}/{id}/file",
        summary="The file that Andy sent with a message, while its copy is stored.",
        media=("application/octet-stream",),
    ),
    Operation(method="get", path="/groups", summary="The registered groups."),
    Operation(method="post", path="/groups", summary="Register a chat.", body=Registration, codes=(201,)),
    Operation(
        method="post",
        path="/groups/requests/{number}",
        summary="Register, ignore or block a chat that called Andy and has no group.",
        body=AccessAnswer,
    ),
    Operation(
        method="delete", path="/groups/{folder}", summary="Unregister a group; its files and history stay."
    ),
    Operation(
        method="patch",
        path="/groups/{folder}",
        summary="Change a group's name, its trigger, or whether it answers every message.",
        body=GroupProfile,
    ),
    Operation(
        method="post",
        path="/groups/{folder}/chats",
        summary="Add a chat to a group, or set which of its chats receives notifications.",
        body=FurtherChat,
    ),
    Operation(
        method="delete",
        path="/groups/{folder}/chats",
        summary="Remove one of several chats from a group.",
        query=ChatQuery,
    ),
    Operation(
        method="post",
        path="/groups/{folder}/configured",
        summary="Make Andy apply a group's configuration that was changed in the store.",
    ),
    Operation(
        method="post",
        path="/groups/{folder}/say",
        summary="Send a text to a group's chat as Andy, word for word.",
        body=Speech,
        codes=(202,),
    ),
    Operation(method="get", path="/reminders", summary="The pending reminders."),
    Operation(method="post", path="/reminders", summary="Set a reminder.", body=NewReminder, codes=(201,)),
    Operation(
        method="post",
        path="/reminders/{id}/move",
        summary="Move a reminder to another time.",
        body=NewTime,
    ),
    Operation(method="post", path="/reminders/{id}/cancel", summary="Cancel a reminder."),
    Operation(method="post", path="/tasks", summary="Make a scheduled task.", body=NewTask, codes=(201,)),
    Operation(
        method="post",
        path="/tasks/{id}/{action}",
        summary="Pause, resume, cancel, restore or run a scheduled task.",
        choices={"action": ("pause", "resume", "cancel", "restore", "run")},
    ),
    Operation(
        method="post",
        path="/loops/{folder}/{action}",
        summary="Switch a group's loop on or off, pause or resume it, or wake the agent now.",
        choices={"action": ACTIONS},
    ),
    Operation(
        method="post", path="/turns/{id}/undo", summary="Undo the changes of a turn.", body=UndoRequest
    ),
    Operation(
        method="get",
        path="/whatsapp/pair",
        summary="The code that pairs WhatsApp, in the form that `Accept` asks for.",
        media=("image/svg+xml", "text/html", "application/json"),
    ),
    Operation(method="post", path="/whatsapp/pair", summary="Ask for a new code.", codes=(202,)),
    Operation(
        method="get",
        path="/dashboards/{folder}",
        summary="A group's dashboard: its tasks, questions and notifications.",
    ),
    Operation(
        method="post",
        path="/dashboards/{folder}/tools/{tool}",
        summary="Call a tool of a group's dashboard; 409 with the tool's answer if the tool refuses.",
        answer=schema_of(ToolAnswerView),
    ),
    Operation(
        method="post",
        path="/dashboards/{folder}/worker",
        summary="Run the dashboard worker now: a model updates a group's dashboard.",
        codes=(202,),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A value of an answer that is a parameter of another operation, in OpenAPI's runtime expressions."""

    source: str
    """The method and the path whose answer has it."""
    targets: tuple[str, ...]
    """Methods and paths."""
    parameters: Mapping[str, str]


_GROUP_WORK = (
    "patch /groups/{folder}",
    "delete /groups/{folder}",
    "post /groups/{folder}/chats",
    "delete /groups/{folder}/chats",
    "post /groups/{folder}/configured",
    "post /groups/{folder}/say",
    "post /loops/{folder}/{action}",
    "get /dashboards/{folder}",
    "post /dashboards/{folder}/tools/{tool}",
    "post /dashboards/{folder}/worker",
)
_BY_GROUP = ("get /api/messages", "get /api/turns", "get /api/notices", "get /api/changes")
_TASK_WORK = ("get /api/tasks/{id}", "post /tasks/{id}/{action}")
_REMINDER_WORK = ("post /reminders/{id}/move", "post /reminders/{id}/cancel")
_FIRST = "$response.body#/rows/0"
LINKS = (
    Link(source="get /api/groups", targets=_GROUP_WORK, parameters={"folder": f"{_FIRST}/folder"}),
    Link(source="get /api/groups", targets=_BY_GROUP, parameters={"group": f"{_FIRST}/folder"}),
    Link(
        source="get /api/groups",
        targets=("post /chat/{group}/opened", "get /api/context/{group}"),
        parameters={"group": f"{_FIRST}/folder"},
    ),
    Link(source="post /groups", targets=_GROUP_WORK, parameters={"folder": "$response.body#/folder"}),
    Link(source="post /chat", targets=("get /messages/{id}",), parameters={"id": "$response.body#/id"}),
    Link(
        source="get /api/messages",
        targets=("get /api/messages/{group}/{id}", "get /api/messages/{group}/{id}/file"),
        parameters={"group": "$request.query.group", "id": f"{_FIRST}/id"},
    ),
    Link(source="get /api/messages", targets=("get /messages/{id}",), parameters={"id": f"{_FIRST}/id"}),
    Link(source="get /api/turns", targets=("get /api/turns/{id}",), parameters={"id": f"{_FIRST}/id"}),
    Link(source="get /api/tasks", targets=_TASK_WORK, parameters={"id": f"{_FIRST}/id"}),
    Link(source="post /tasks", targets=_TASK_WORK, parameters={"id": "$response.body#/id"}),
    Link(source="get /api/reminders", targets=_REMINDER_WORK, parameters={"id": f"{_FIRST}/id"}),
    Link(source="post /reminders", targets=_REMINDER_WORK, parameters={"id": "$response.body#/id"}),
    *(
        Link(
            source=f"get {resource.path}",
            targets=(f"get {resource.path}",),
            parameters={"cursor": "$response.body#/next"},
        )
        for resource in RESOURCES
        if issubclass(resource.query, PageQuery)
    ),
)


def openapi_route() -> Route:
    """Return the route that answers with the OpenAPI document of all routes."""

    async def answer(_: Request) -> Response:
        """Answer with the document."""
        return JSONResponse(description())

    return Route(PATH, answer)


def description() -> Document:
    """Return the OpenAPI document that describes every route of the HTTP API. Pure."""
    models: set[type[BaseModel]] = {resource.answer for resource in RESOURCES} | {ErrorDocument}
    for operation in OPERATIONS:
        models |= {model for model in (operation.body, operation.answer) if model is not None}
    # The second result has the schemas of the models, and of the models within them, as `$defs`.
    _, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=SCHEMAS + "{model}",
    )
    paths: dict[str, dict[str, Document]] = {}
    for resource in RESOURCES:
        paths.setdefault(resource.path, {})["get"] = _resource(resource)
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    _add_links(paths)
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


def _resource(resource: ApiResource) -> Document:
    """Return the OpenAPI description of a resource of `/api`, which is read by GET."""
    answer = {"application/json": {"schema": {"$ref": SCHEMAS + _name(resource.answer)}}}
    return {
        "summary": resource.summary,
        "parameters": [*_path_parameters(resource.path), *_query_parameters(resource.query)],
        "responses": {"200": {"description": "The answer.", "content": answer}, **_refusals()},
    }


def _operation(operation: Operation) -> Document:
    """Return the OpenAPI description of a route that is no resource of `/api`.

    A route with a known answer may refuse with status 409 and the same schema. `/healthz` needs no token.
    """
    shape = {"schema": {"$ref": SCHEMAS + _name(operation.answer)}} if operation.answer is not None else {}
    content = dict.fromkeys(operation.media, shape)
    refused = {"description": "The request was refused.", "content": content}
    refusal = {"409": refused} if operation.answer else {}
    document: Document = {
        "summary": operation.summary,
        "parameters": [
            *_path_parameters(operation.path, operation.choices),
            *(_query_parameters(operation.query) if operation.query else ()),
        ],
        "responses": {
            **{str(code): {"description": "Done.", "content": content} for code in operation.codes},
            **refusal,
            **_refusals(),
        },
    }
    if operation.body is not None:
        body_content = {"application/json": {"schema": {"$ref": SCHEMAS + _name(operation.body)}}}
        document["requestBody"] = {"required": True, "content": body_content}
    if operation.path == "/healthz":
        document["security"] = []
    return document


def _add_links(paths: dict[str, dict[str, Document]]) -> None:
    """Add an id to each operation in `paths`, and to successful answers the `LINKS` to other operations.

    A link says which value of the answer is a parameter of the other operation: the `id` of `POST /tasks`,
    for example, is that of `GET /api/tasks/{id}`. `paths` maps a path and a method to the description of the
    operation, which is changed in place.
    """
    for path, methods in paths.items():
        for method, operation in methods.items():
            operation["operationId"] = _id_of(f"{method} {path}")
    for link in LINKS:
        method, _, path = link.source.partition(" ")
        for code, response in paths[path][method]["responses"].items():
            if code.startswith("2"):
                links = response.setdefault("links", {})
                for target in link.targets:
                    links[_id_of(target)] = {
                        "operationId": _id_of(target),
                        "parameters": dict(link.parameters),
                    }


def _id_of(operation: str) -> str:
    """Return the id of an operation: `get_api_turns_id` for `get /api/turns/{id}`."""
    return "_".join(re.findall(r"\w+", operation))


def _refusals() -> Document:
    """Return the OpenAPI description of an error of the client (4XX), which is the same for all routes."""
    content = {"application/json": {"schema": {"$ref": SCHEMAS + ErrorDocument.__name__}}}
    return {"4XX": {"description": "The request was refused, with the reason.", "content": content}}


def _path_parameters(path: str, choices: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[Document]:
    """Yield the OpenAPI descriptions of the parameters of a path such as `/turns/{id}`.

    `choices` maps the name of a parameter to its allowed values, if they are few.
    """
    for part in path.split("/"):
        if part.startswith("{"):
            name = part[1:-1]  # without the braces
            allowed = {"enum": list(choices[name])} if choices and name in choices else {}
            yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", **allowed}}


def _query_parameters(query: type[BaseModel]) -> Iterator[Document]:
    """Yield the OpenAPI descriptions of the parameters of a query, as its model declares them."""
    schema = query.model_json_schema()
    for name, parameter in schema.get("properties", {}).items():
        own_schema = {key: value for key, value in parameter.items() if key not in ("title", "description")}
        text = {"description": parameter["description"]} if "description" in parameter else {}
        is_required = name in schema.get("required", ())
        yield {
            "name": name,
            "in": "query",
            "required": is_required,
            "schema": _without_references(own_schema, schema),
            **text,
        }


def _without_references(parameter: Document, schema: Document) -> Document:
    """Return the schema of a parameter with each reference replaced by the definition that it names.

    `schema` is the schema of the parameter's model, which has the definitions.
    """
    definitions = schema.get("$defs", {})
    if "$ref" in parameter:
        return dict(definitions[parameter["$ref"].rpartition("/")[2]])  # such as `#/$defs/NAME`
    if "anyOf" in parameter:
        return {**parameter, "anyOf": [_without_references(option, schema) for option in parameter["anyOf"]]}
    return parameter


def _name(model: type[BaseModel]) -> str:
    """Return the name under which pydantic lists a model: its own, with `_` for the brackets of a generic."""
    return model.__name__.replace("[", "_").replace("]", "_")
