"""What goes to the model service and what comes back, whichever way it takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

from orchestrator.proxies.model.headers import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """A request as it goes upstream. `headers` hold the credential, so they show in no repr."""

    method: str
    url: str
    headers: Sequence[Header] = field(repr=False)
    body: AsyncIterator[bytes] | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamResponse:
    """An answer whose head has come."""

    status: int
    headers: list[Header]
    chunks: AsyncGenerator[bytes]
    """The body as it comes, not decompressed. Raises `AnswerCut`."""
