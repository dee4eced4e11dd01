"""A real MCP server that is a program, as an owner would put it into the folder `mcp/dice/` of a home."""

from __future__ import annotations

from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("dice", log_level="CRITICAL")


@server.tool()
def roll(sides: int) -> str:
    """Roll a die."""
    return f"rolled {sides} of {sides} in {Path.cwd()}"


@server.tool()
def write_beside() -> str:
    """Try to write beside the program."""
    try:
        Path(__file__).with_name("written").touch()
    except OSError as error:
        return str(error.strerror)
    return "written"


if __name__ == "__main__":
    server.run()
