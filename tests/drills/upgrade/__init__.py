"""An upgrade as operators make it: from the commit that ``base`` names to this one, under load."""
