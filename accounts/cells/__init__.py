"""Cells: the map of a proxy, the shared catalogue, and the move of an organization."""
