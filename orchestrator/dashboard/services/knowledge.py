"""Save what a group has learned."""

from __future__ import annotations

import hashlib

from orchestrator.dashboard.services.context import ServiceContext, new_id
from orchestrator.dashboard.views import serializers
from orchestrator.dashboard.words import texts
from orchestrator.domain.dashboard import Category, Insight, ToolRefused, ToolResult
from orchestrator.store.board import knowledge as board_knowledge

TITLE_CHARS = 50


async def save_insight(
    ctx: ServiceContext,
    *,
    content: str,
    category: Category = Category.LEARNING,
    title: str = "",
    source: str = "",
    tags: tuple[str, ...] = (),
) -> ToolResult:
    """Save an insight, something that was learned, unless the same text is saved already.

    `source` says where it was learned. A missing title is the start of the text.

    Raises:
        ToolRefused: a text is empty or too long, or there are too many insights.
    """
    content = texts.text("content", content, is_needed=True)
    digest = content_hash(content)
    stored = await board_knowledge.insight_of(ctx.tx, ctx.folder, digest)
    if stored is not None:
        return ToolResult(
            text=f"Insight {stored.id} says that already.", data=serializers.insight(stored, ctx.zone)
        )
    if len(await board_knowledge.insights(ctx.tx, ctx.folder)) >= ctx.limits.insights:
        raise ToolRefused("CAP", f"{ctx.limits.insights:,} insights are kept already.")
    insight = Insight(
        folder=ctx.folder,
        id=new_id("insight"),
        category=category,
        title=texts.line("title", title) or " ".join(content.split())[:TITLE_CHARS],
        content=content,
        source=texts.line("source", source),
        tags=texts.tags(tags),
        created_ms=ctx.now_ms,
        content_hash=digest,
    )
    # For its effects: a missing dashboard is created, and its revision rises, by which others notice the
    # change.
    await ctx.version()
    await board_knowledge.add_insight(ctx.tx, insight)
    return ToolResult(
        text=f"Insight {insight.id} is saved: {insight.title}", data=serializers.insight(insight, ctx.zone)
    )


def content_hash(content: str) -> str:
    """Return a hash of a text that is the same for texts that differ only in spaces and case."""
    # Half of the digest is enough to tell texts apart.
    return hashlib.sha256(" ".join(content.casefold().split()).encode()).hexdigest()[:32]
