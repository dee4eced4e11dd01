"""A dashboard as files: written out for other programs, and taken in."""
