"""Send replies from the outbox to their channel, again if need be. Start with `delivery.py`."""
