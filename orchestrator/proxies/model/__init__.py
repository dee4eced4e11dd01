"""The proxy that holds the keys."""
