"""Who runs next."""
