"""The tools that an agent may call, and the MCP server that offers them. Start with `table.py`."""
