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
    cursor: int | None = Field(None, ge=1, lt=2**53, description="`next` of the page before.")
    limit: int = Field(50, ge=1, le=MAX_LIMIT)


class GroupPageQuery(PageQuery):
    group: str | None = Field(None, max_length=64, description="Only this group, by its folder name.")


class OneGroupPageQuery(PageQuery):
    group: str = Field(max_length=64, description="A group, by its folder name.")


class MessagesQuery(OneGroupPageQuery):
    after: int | None = Field(
        None, ge=0, lt=2**53, description="Only messages after this `seq`; goes on with the last one seen."
    )


class OverQuery(GroupPageQuery):
    over: bool = Field(default=False, description="Those that are over, too.")


class NoticesQuery(OneGroupPageQuery):
    over: bool = Field(default=False, description="Those that are over, too.")


class NotificationsQuery(GroupPageQuery):
    status: NotificationStatus | None = None
    task: str | None = Field(None, max_length=64)


class AuditQuery(GroupPageQuery):
    since: str | None = Field(None, max_length=40, description="A time, or 30m, 2h, 7d ago.")
    refused: bool = Field(default=False, description="Only what was refused.")


class UsageQuery(ApiQuery):
    group: str | None = Field(None, max_length=64)
    by: costs.By = "day"


class UpcomingQuery(GroupPageQuery):
    days: int = Field(7, ge=1, le=31)


class SearchQuery(GroupPageQuery):
    text: str = Field(description='Words that a message has to have; "several words" as one.')
    since: str | None = Field(None, max_length=40, description="A time, or 30m, 2h, 7d ago.")


class LogsQuery(ApiQuery):
    group: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Else the host's own log.")
    run: str | None = Field(None, pattern=r"^[\w-]{1,64}$", description="By the beginning of its id.")
    lines: int = Field(200, ge=1, le=MAX_LINES)
