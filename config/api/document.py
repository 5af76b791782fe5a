"""Serves the OpenAPI document; a process renders it once."""

from __future__ import annotations

import hashlib
import threading
from typing import Any, Final

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.request import Request


class _Document:
    """The rendered document of this process; the first reader renders it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._content = b""

    def read(self) -> bytes:
        # Readers that arrive meanwhile wait, because rendering takes a second of CPU.
        with self._lock:
            if not self._content:
                generator: Any = SchemaGenerator
                document = generator().get_schema(request=None, public=True)
                self._content = OpenApiJsonRenderer().render(document, renderer_context={})
            return self._content


_DOCUMENT: Final = _Document()


class DocumentView(SpectacularJSONAPIView):
    """Serves the document from memory: its operations are those of the running version."""

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        content = _DOCUMENT.read()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        renderer = self.perform_content_negotiation(request, force=True)[0]
        response = HttpResponse(
            content,
            content_type=renderer.media_type,
            headers={
                "Content-Disposition": f'inline; filename="Causeway.{renderer.format}"',
                "ETag": etag,
                "Vary": "Accept",
            },
        )
        return get_conditional_response(request, etag=etag, response=response) or response
