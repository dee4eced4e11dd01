"""The base of every document on the wire, and the one version check."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

WIRE_VERSION = 1
"""The version of the contract between host and container, which each document names."""

MAX_REASON_CHARS = 300
"""Most characters of the reason why a document cannot be parsed; it may quote the document."""


class WireError(ValueError):
    """A document of the other side breaks the contract; the message names the field."""


class OtherVersion(WireError):
    """A document of the other side is of another version of the contract."""

    def __init__(self, version: object) -> None:
        """`version` is the version in the document, which may be of any type."""
        super().__init__(
            f"wire version {version} is not {WIRE_VERSION}: rebuild the image with 'andy image build'"
        )


class Document(BaseModel):
    """A frozen JSON document of the wire. Unknown fields are ignored, so that minor additions pass."""

    # Built at their first use: no process uses them all, and to build all is a tenth of its start.
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, defer_build=True)

    v: int = WIRE_VERSION

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Return the document in a JSON text.

        Raises:
            WireError: it is not JSON, or a field is missing or wrong.
            OtherVersion: its version is not `WIRE_VERSION`.
        """
        try:
            document = cls.model_validate_json(text)
        except (ValidationError, RecursionError) as error:
            raise WireError(first_reason(error)) from error
        return document.checked()

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Return the document with these fields, which were decoded from JSON.

        Raises:
            WireError: a field is missing or wrong.
            OtherVersion: its version is not `WIRE_VERSION`.
        """
        try:
            return cls.model_validate(fields).checked()
        except ValidationError as error:
            raise WireError(first_reason(error)) from error

    def checked(self) -> Self:
        """Return the document if it is of this version. Raises `OtherVersion`."""
        if self.v != WIRE_VERSION:
            raise OtherVersion(self.v)
        return self

    def to_json(self) -> str:
        """Return the document as one line of JSON, with the contract's names and without absent fields."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def first_reason(error: ValidationError | RecursionError) -> str:
    """Return the place and the text of the first error in a document that could not be parsed.

    It has at most `MAX_REASON_CHARS` characters: it is logged, and both the place and the text may quote a
    long name of the document.
    """
    if not isinstance(error, ValidationError):
        return "nested too deep"
    # Without the input: the document may contain messages of a chat.
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return (f"{place}: {first['msg']}" if place else str(first["msg"]))[:MAX_REASON_CHARS]
