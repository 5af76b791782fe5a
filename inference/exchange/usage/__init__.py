"""The usage of a generation: what is counted, what is believed, and what it costs."""
