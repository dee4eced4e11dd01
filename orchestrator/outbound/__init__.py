"""From the outbox to a channel."""
