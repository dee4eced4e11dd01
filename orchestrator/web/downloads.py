"""Downloads of files of chats: files of messages, and copies of files that agents sent.

They are never shown in a page, only saved: a hostile file could attack the page.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from orchestrator.base.dirfd import inner, open_file, opened
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Outgoing
from orchestrator.groups import attachments
from orchestrator.home.directory import Home
from orchestrator.reports.message_timeline import sent_file
from orchestrator.store.groups import groups
from orchestrator.web.api.lists import ApiSource

CHUNK_BYTES = 256 * 1024
MAX_BYTES = 512 * 1024 * 1024
_COPY = re.compile(r"out-[0-9a-f]+")
"""The names of copies of files that agents sent, such as `out-1f03`."""


class FileNotStored(BadRequest):
    """This file is not kept any more: of each group the newest 20 that were sent are, for a week."""

    code = "file_not_kept"
    http_status = 404


async def received(source: ApiSource, folder: str, name: str) -> Response:
    """Answer with a file of a group's attachments, as a download.

    Raises:
        UnknownGroup: there is no such group.
        FileNotStored: no file has this name.
        FileRefused: the file cannot be sent, for example because it is too large.
    """
    group = await source.read(lambda tx: groups.known(tx, folder))
    path = f"{attachments.FOLDER}/{name}"
    try:
        body = await asyncio.to_thread(
            attachments.open_own, source.home.root, group.folder, path, limit=MAX_BYTES
        )
    except attachments.FileRefused as refused:
        if isinstance(refused.__cause__, FileNotFoundError):
            raise FileNotStored(f"There is no file '{name}' in '{group.folder}'.") from refused
        raise
    return _answer(body, name)


async def sent(source: ApiSource, folder: str, message: str) -> Response:
    """Answer with the copy of the file that Andy sent with a message, as a download.

    `message` is the id of the message.

    Raises:
        UnknownGroup: there is no such group.
        NoMessage: there is no such message with a file.
        FileNotStored: the copy was deleted.
    """
    outgoing = await source.read(lambda tx: sent_file(tx, folder, message))
    body = await asyncio.to_thread(_open_copy, source.home, outgoing)
    return _answer(body, outgoing.attachment.name if outgoing.attachment else "file")


def file_routes(source: ApiSource) -> list[Route]:
    """Return the routes by which programs download the files of messages and the files that Andy sent."""

    async def get_received(request: Request) -> Response:
        """Answer with the file of a group's attachments that the address names."""
        return await received(source, request.path_params["folder"], request.path_params["name"])

    async def get_sent(request: Request) -> Response:
        """Answer with the file that was sent with the message that the address names."""
        return await sent(source, request.path_params["group"], request.path_params["id"])

    return [
        Route("/api/groups/{folder}/files/{name}", get_received),
        Route("/api/messages/{group}/{id}/file", get_sent),
    ]


def _open_copy(home: Home, message: Outgoing) -> BinaryIO:
    """Open the copy of the file that was sent with a message; the caller closes it. Blocks.

    Only the file name of the stored path is used: the store may be from another home. A link is not followed.
    Raises `FileNotStored` if there is no such copy.
    """
    name = message.attachment.path.name if message.attachment else ""
    if not _COPY.fullmatch(name):
        raise FileNotStored
    try:
        with ExitStack() as stack:
            data_folder = stack.enter_context(opened(home.data))
            outgoing_folder = stack.enter_context(inner(data_folder, "outgoing"))
            return os.fdopen(open_file(outgoing_folder, name), "rb")
    except OSError as error:
        raise FileNotStored from error


def _answer(body: BinaryIO, name: str) -> Response:
    """Return an answer with an open file's contents, which the browser saves as `name` and never shows."""
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "no-store",
    }
    return StreamingResponse(_chunks(body), media_type="application/octet-stream", headers=headers)


def _chunks(body: BinaryIO) -> Iterator[bytes]:
    """Yield the contents of an open file in pieces, and close it at the end."""
    # A plain iterator, which Starlette reads in threads: a slow disk then holds up no other request.
    with body:
        while chunk := body.read(CHUNK_BYTES):
            yield chunk
