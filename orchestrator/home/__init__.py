"""The home of one Andy: its directory, its lock, and the settings that are stored in it."""
