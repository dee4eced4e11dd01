"""What containers ask of the host, and its answers."""
