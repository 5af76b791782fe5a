"""Catalogues as files, for services with a database of their own."""

from __future__ import annotations

from typing import Any


def describe_catalogue(base_url: str, behaviours: dict[str, str]) -> dict[str, Any]:
    """Returns a catalogue of models with these names, which behave so at the provider ``acme``."""
    text = {"input_modalities": ["text"], "output_modalities": ["text"]}
    return {
        "providers": [
            {"slug": "acme", "name": "Acme AI", "dialect": "openai", "base_url": base_url,
             "data_policy": {"training": False, "retains_prompts": False}}
        ],
        "models": [
            {"id": name, "canonical_slug": name, "name": name, "created": 1780272000,
             "description": "", "context_length": 131072, "supported_parameters": ["max_tokens"],
             "architecture": {**text, "modality": "text->text", "tokenizer": "Other",
                              "instruct_type": None}}
            for name in behaviours
        ],
        "endpoints": [
            {"model": name, "provider": "acme", "upstream_model_id": behaviour,
             "pricing": {"prompt": "0.000001", "completion": "0.000002"},
             "context_length": 131072, "max_completion_tokens": 1000}
            for name, behaviour in behaviours.items()
        ],
    }  # fmt: skip
