"""`andy` at a terminal: one module a family of commands. Nothing of the host needs it."""
