"""Words for times and texts: how they are read as they come in, and how the rules speak."""
