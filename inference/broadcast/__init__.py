"""Sends the metadata of ended generations to the broadcast destinations of organizations."""
