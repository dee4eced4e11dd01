"""The description of a tool that both sides use: its texts for a model, and its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


class Arguments(BaseModel):
    """The arguments that a model fills in. Unknown names are refused, so that a slip is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """One tool: its name and description for a model, and its arguments."""

    name: str
    description: str
    arguments: type[Arguments]
    makes: bool = False
    """Whether it creates something that a retried turn must not create twice."""
    is_deferred: bool = False
    """Whether a model gets only its name at first, and looks the rest up before it calls it."""
