"""Searches the static files once for all test clients."""

from __future__ import annotations

from typing import Any

from whitenoise.middleware import WhiteNoiseMiddleware


def share_static_files(patch: Any) -> None:
    """Lets every WhiteNoise middleware use the files that the first one found."""
    search = WhiteNoiseMiddleware.add_files_from_finders
    found: dict[str, dict[str, Any]] = {}

    def add_files(middleware: Any) -> None:
        prefix = middleware.static_prefix
        if prefix not in found:
            search(middleware)
            found[prefix] = dict(middleware.files)
        middleware.files.update(found[prefix])

    patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", add_files)
