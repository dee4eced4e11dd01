"""What a tool is to both sides: its words for a model, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


class Arguments(BaseModel):
    """What a model fills in. Unknown names are refused, so that a slip is noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """One tool: its name and words for a model, and what it takes."""

    name: str
    description: str
    arguments: type[Arguments]
    makes: bool = False
    """It makes something that a turn tried again must not make twice."""
    is_deferred: bool = False
    """A model is told its name alone, and looks the rest up when it wants to call it."""
