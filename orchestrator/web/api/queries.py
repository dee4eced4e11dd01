"""The query parameters of each list of `/api`, with their bounds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.domain.dashboard import NotificationStatus
from orchestrator.reports import costs

MAX_LIMIT = 200
MAX_LINES = 2_000


class ApiQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


# Numbers stay below 2**53: clients written in JavaScript, among others, hold no larger ones exactly.
class PageQuery(ApiQuery):
    cursor: int | None = Field(None, ge=1, lt=2**53, description="The `next` of the page before.")
    limit: int = Field(50, ge=1, le=MAX_LIMIT)


class GroupPageQuery(PageQuery):
    group: str | None = Field(None, max_length=64, description="Only this group, by its folder name.")


class OneGroupPageQuery(PageQuery):
    group: str = Field(max_length=64, description="A group, by its folder name.")


class MessagesQuery(OneGroupPageQuery):
    after: int | None = Field(
        None, ge=0, lt=2**53, description="Only messages whose `seq` is greater than this number."
    )


class OverQuery(GroupPageQuery):
    over: bool = Field(default=False, description="Whether to list completed and cancelled ones, too.")


class NoticesQuery(OneGroupPageQuery):
    over: bool = Field(default=False, description="Whether to list ended ones, too.")


class NotificationsQuery(GroupPageQuery):
    status: NotificationStatus | None = None
    task: str | None = Field(None, max_length=64)


class AuditQuery(GroupPageQuery):
    since: str | None = Field(
        None, max_length=40, description="Only rows since this time; 30m, 2h or 7d means that long ago."
    )
    refused: bool = Field(default=False, description="Whether to list only refusals.")


class UsageQuery(ApiQuery):
    group: str | None = Field(None, max_length=64)
    by: costs.By = "day"


class UpcomingQuery(GroupPageQuery):
    days: int = Field(7, ge=1, le=31)


class SearchQuery(GroupPageQuery):
    text: str = Field(description='The words that a message must have; "in quotes" they are one phrase.')
    since: str | None = Field(
        None, max_length=40, description="Only messages since this time; 30m, 2h or 7d means that long ago."
    )


class LogsQuery(ApiQuery):
    group: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="The log of this group's container, by folder name. Default: the host's log.",
    )
    run: str | None = Field(
        None,
        pattern=r"^[\w-]{1,64}$",
        description="The run of the container, by the beginning of its id. Default: the newest.",
    )
    lines: int = Field(200, ge=1, le=MAX_LINES)
