"""The HTTP door on loopback."""
