"""What a guardrail would have refused, by the metadata of generations alone."""
