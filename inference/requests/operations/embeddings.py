"""Embeddings: the body of a request, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from inference.requests.operations.completions import PARAMETERS
from inference.requests.rows import Fields, RequestRow, find_media, name_model
from inference.requests.schemas import ProviderPreferences, Session, Slug, User


class EmbeddingsItem(msgspec.Struct):
    content: Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(min_length=1)]


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The body of ``POST /embeddings``: texts, tokens, or items with parts of several kinds."""

    input: str | Annotated[list[str | int | list[int] | EmbeddingsItem], msgspec.Meta(min_length=1)]
    model: Slug
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    input_type: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    provider: ProviderPreferences | None = None
    user: User | None = None
    session_id: Session | None = None
    stream: bool | None = None


def _count_vectors(request: EmbeddingsRequest) -> int:
    # A list of integers is one input in tokens.
    inputs = () if isinstance(request.input, str) else request.input
    return max(1, sum(not isinstance(part, int) for part in inputs))


def _find_media(request: EmbeddingsRequest) -> Iterable[dict[str, msgspec.Raw]]:
    inputs = () if isinstance(request.input, str) else request.input
    return find_media(item.content for item in inputs if isinstance(item, EmbeddingsItem))


def _measure_text(fields: Fields) -> int:
    return len(fields["input"])


ROW: Final = RequestRow(
    shape=EmbeddingsRequest,
    models=name_model,
    answers=_count_vectors,
    answers_field="input",
    parts=_find_media,
    prompt_text=_measure_text,
    parameters=PARAMETERS,
)
