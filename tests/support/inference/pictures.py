"""Pictures, and requests for them."""

from __future__ import annotations

import base64
from typing import Any, Final

from tests.support.simulator.pictures import make_png

ROUTER: Final = "/api/v1/images"
GENERATIONS: Final = "/api/v1/images/generations"
EDITS: Final = "/api/v1/images/edits"

PNG: Final = make_png(16, 16)
ENCODED: Final = base64.b64encode(PNG).decode()
DATA_URL: Final = f"data:image/png;base64,{ENCODED}"


def reference(url: str = DATA_URL) -> dict[str, Any]:
    """Returns an image as a request names it."""
    return {"type": "image_url", "image_url": {"url": url}}
