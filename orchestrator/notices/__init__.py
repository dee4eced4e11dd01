"""Store notices for an agent's future turns: its own, and events of the host. Start with `service.py`."""
