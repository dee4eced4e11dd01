"""Runs: starting, hearing, ending containers."""
