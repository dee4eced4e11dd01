"""What only runs with Docker Compose: the container's entry point and its view of itself.

Start with `entrypoint.py`.
"""
