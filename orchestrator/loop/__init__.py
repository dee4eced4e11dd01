"""A group's agent wakes by itself: when it asked to, when nothing was for long, when something happens."""
