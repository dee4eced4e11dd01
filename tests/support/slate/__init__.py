"""A messenger in a package of its own, as somebody else might write it: people and Andy write on slates."""
