"""Services that the owner has set up: models and MCP servers. Start with `model_services.py`."""
