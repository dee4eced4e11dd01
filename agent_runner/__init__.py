"""What runs inside a group's container: one agent, its tools and its session with the host."""
