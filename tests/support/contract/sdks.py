"""The public SDKs as a site's tenant; they send nothing again."""

from __future__ import annotations

from typing import Any

import anthropic
import openai

from tests.support.inference.site import Site


def anthropic_client(site: Site, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=f"{site.server}/api", api_key=site.tenant.api_key, max_retries=0, **options
    )


def openai_client(site: Site, **options: Any) -> openai.OpenAI:
    options = {"base_url": f"{site.server}/api/v1", "max_retries": 0, **options}
    return openai.OpenAI(api_key=site.tenant.api_key, **options)
