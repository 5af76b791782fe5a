"""How the console writes dates: ISO 8601, in UTC."""
