"""What a group's conversation was about, so that it outlives its session, its container and its model."""
