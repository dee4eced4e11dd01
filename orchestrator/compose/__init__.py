"""Code for Docker Compose only: the container's entry point and its view of itself.

Start with `entrypoint.py`.
"""
