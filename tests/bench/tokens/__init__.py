"""Makes the table of tokenizers from published vocabularies, and judges it."""
