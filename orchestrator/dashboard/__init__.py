"""What a group has to do, what is open, what it is told at a time and what it has learned."""
