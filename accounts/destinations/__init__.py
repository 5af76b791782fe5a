"""Broadcast destinations: where organizations want the metadata of their generations sent."""
