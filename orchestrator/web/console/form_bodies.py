"""Read the body of a form within limits: fields alone, or fields with files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from orchestrator.web.bodies import bounded, read_body
from orchestrator.web.console.form_tokens import FormForged, SentForm, UploadedFile

MAX_FORM_BYTES = 2 * 1024 * 1024
"""Bytes of a form without files, and of one field of a form with files."""
MAX_MIME_CHARS = 100
"""Characters of a file's content type that are stored; a browser may send anything."""
MAX_FILES, MAX_PARTS = 1, 100
"""Files and fields of a form with files."""


@asynccontextmanager
async def read_form(request: Request, *, upload_bytes: int = 0) -> AsyncIterator[SentForm]:
    """Read the form in the body of a request, and yield it; its files exist until the block ends.

    `upload_bytes` is the most bytes of a form with files; 0 allows no files.

    Raises:
        FormForged: the body is no form, or has files that are not allowed.
        BodyTooLarge: it is larger than 2 MiB, or, with files, than `upload_bytes`.
    """
    # A form without files has another content type. A form with files that are not allowed is read in the
    # same way, and then refused, because its fields are not found.
    if not (upload_bytes and request.headers.get("content-type", "").startswith("multipart/form-data")):
        yield SentForm.parse(await read_body(request, limit=MAX_FORM_BYTES))
        return
    parser = MultiPartParser(
        request.headers,
        bounded(
            request, upload_bytes, f"The file is over {upload_bytes / 2**20:.0f} MiB: send a smaller one."
        ),
        max_files=MAX_FILES,
        max_fields=MAX_PARTS,
        max_part_size=MAX_FORM_BYTES,
    )
    try:
        parts = await parser.parse()
    except MultiPartException as error:
        raise FormForged from error
    fields: dict[str, list[str]] = {}
    files: dict[str, UploadedFile] = {}
    try:
        for name, value in parts.multi_items():
            if isinstance(value, UploadFile):
                files[name] = _uploaded(value)
            else:
                fields.setdefault(name, []).append(value)
        yield SentForm(fields, files)
    finally:
        await parts.close()


def _uploaded(upload: UploadFile) -> UploadedFile:
    """Return an uploaded file as the console's own type, with defaults for what the browser left out."""
    mime = (upload.content_type or "application/octet-stream")[:MAX_MIME_CHARS]
    return UploadedFile(name=upload.filename or "", mime=mime, size=upload.size or 0, body=upload.file)
