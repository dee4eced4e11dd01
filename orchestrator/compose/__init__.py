"""Runs with Docker Compose alone: the container's entry point and its view of itself.

Start with `entrypoint.py`.
"""
