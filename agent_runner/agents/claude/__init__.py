"""The agent that is Claude, through the Claude Agent SDK. Start with `agent.py`."""
