"""Reads the configurations of other gateways: their deployments, aliases and what is left out."""
