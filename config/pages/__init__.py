"""Pages for people that are no page of the console: the first one, and those of failures."""
