"""What happens at a time."""
