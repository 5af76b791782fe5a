"""Connects a server or a provider: asks what it has, tries a request, and then stores it."""
