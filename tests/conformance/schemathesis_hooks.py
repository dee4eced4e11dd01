"""Changes to what Schemathesis asks, so that no request waits for a reply or for events that do not come."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_query(context: schemathesis.HookContext, query: dict[str, Any] | None) -> dict[str, Any] | None:
    if query is not None and context.operation.path == "/events" and query.get("follow") != "":
        return {**query, "follow": "false"}
    return query


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    if isinstance(body, dict) and context.operation.path == "/chat" and "wait" in body:
        return {**body, "wait": 0}
    return body
