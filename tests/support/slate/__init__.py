"""A messenger in a package of somebody else: slates that are written on by a person and by Andy."""
