"""An MCP server with what the conformance suite asks for, by its names: `… everything_server.py PORT`."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import warnings
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import Message, UserMessage
from mcp.types import (
    AudioContent,
    CallToolResult,
    Completion,
    EmbeddedResource,
    ImageContent,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
PAUSE_SECONDS = 0.05
server = MCPServer("everything", version="1", log_level="CRITICAL")


def text(words: str) -> TextContent:
    return TextContent(type="text", text=words)


def resource(uri: str, content: str, kind: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=content)
    )


def picture() -> ImageContent:
    return ImageContent(type="image", data=PICTURE, mime_type="image/png")


# Tools


@server.tool(structured_output=False)
def test_simple_text() -> TextContent:
    """Return a text."""
    return text("This is a simple text response for testing.")


@server.tool(structured_output=False)
def test_image_content() -> ImageContent:
    """Return a picture."""
    return picture()


@server.tool(structured_output=False)
def test_audio_content() -> AudioContent:
    """Return a sound."""
    return AudioContent(type="audio", data=SOUND, mime_type="audio/wav")


@server.tool(structured_output=False)
def test_embedded_resource() -> EmbeddedResource:
    """Return a resource."""
    return resource("test://embedded-resource", "This is an embedded resource content.")


@server.tool(structured_output=False)
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Return three kinds of content."""
    data = json.dumps({"test": "data", "value": 123})
    mixed = resource("test://mixed-content-resource", data, "application/json")
    return [text("Multiple content types test:"), picture(), mixed]


@server.tool(structured_output=False)
async def test_tool_with_logging(ctx: Context[Any, Any]) -> str:
    """Log three lines while it works."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(line)
        await asyncio.sleep(PAUSE_SECONDS)
    return "It has logged three lines."


@server.tool(structured_output=False)
def test_error_handling() -> CallToolResult:
    """Fail."""
    return CallToolResult(
        content=[text("This tool intentionally returns an error for testing")], is_error=True
    )


@server.tool(structured_output=False)
async def test_tool_with_progress(ctx: Context[Any, Any]) -> str:
    """Report its progress three times."""
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100)
        await asyncio.sleep(PAUSE_SECONDS)
    return "It has reported its progress."


@server.tool(structured_output=False)
async def test_sampling(prompt: str, ctx: Context[Any, Any]) -> str:
    """Have the client's model answer."""
    asked = SamplingMessage(role="user", content=text(prompt))
    answer = await ctx.session.create_message([asked], max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {answer.content}"


async def elicit(ctx: Context[Any, Any], message: str, properties: dict[str, Any]) -> str:
    schema = {"type": "object", "properties": properties, "required": []}
    answer = await ctx.session.elicit(message, schema, related_request_id=ctx.request_id)
    return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content)}"


@server.tool(structured_output=False)
async def test_elicitation(message: str, ctx: Context[Any, Any]) -> str:
    """Ask the user."""
    return await elicit(ctx, message, {"username": {"type": "string"}, "email": {"type": "string"}})


@server.tool(structured_output=False)
async def test_elicitation_sep1034_defaults(ctx: Context[Any, Any]) -> str:
    """Ask the user with defaults."""
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await elicit(ctx, "Who is it?", properties)


@server.tool(structured_output=False)
async def test_elicitation_sep1330_enums(ctx: Context[Any, Any]) -> str:
    """Ask the user to choose, in each of the five ways."""
    names = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]
    legacy = {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]}
    properties = {
        "untitledSingle": {"type": "string", "enum": names},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": legacy,
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": names}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await elicit(ctx, "Which one?", properties)


@server.tool(structured_output=False)
async def test_reconnection(ctx: Context[Any, Any]) -> str:
    """Close the stream while it works: the client comes again."""
    await ctx.close_sse_stream()
    await asyncio.sleep(PAUSE_SECONDS)
    return "Reconnection test completed successfully"


# Resources


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """Return a text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """Return a picture."""
    return base64.b64decode(PICTURE)


@server.resource("test://watched-resource", mime_type="text/plain")
def watched_resource() -> str:
    """Return a text that could change."""
    return "Watched resource content"


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:  # noqa: A002 - the suite's own word
    """Return what is asked for."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


# Prompts


@server.prompt()
def test_simple_prompt() -> str:
    """Return a prompt."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Return a prompt with both arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:  # noqa: N803 - the suite's own word
    """Return a prompt with a resource."""
    embedded = resource(resourceUri, "Embedded resource content for testing.")
    return [UserMessage(embedded), UserMessage("Please process the embedded resource above.")]


@server.prompt()
def test_prompt_with_image() -> list[Message]:
    """Return a prompt with a picture."""
    return [UserMessage(picture()), UserMessage("Please analyze the image above.")]


@server.completion()
async def complete(ref: object, argument: object, context: object) -> Completion:
    """Return two words for whatever is asked."""
    return Completion(values=["paris", "park"], total=2, has_more=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
