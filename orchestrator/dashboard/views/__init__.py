"""A dashboard as it is read: as data, and as text for an agent."""
