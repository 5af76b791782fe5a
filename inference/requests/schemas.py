"""The types that the bodies of several operations share, as msgspec checks them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from inference.requests.limits import MAX_CHOICES, MAX_PARTS, MAX_STOPS

SESSION_LENGTH: Final = 256
_Number = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=100_000_000)]
Slug = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Slugs = Annotated[list[Slug], msgspec.Meta(max_length=32)]


User = Annotated[str, msgspec.Meta(max_length=512)]
Session = Annotated[str, msgspec.Meta(max_length=SESSION_LENGTH)]
Trace = dict[str, msgspec.Raw]
Parts = Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(max_length=MAX_PARTS)]
_Amount = (
    Annotated[float, msgspec.Meta(ge=0)]
    | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,12})?\Z")]
)


Order = Literal["price", "throughput", "latency", "exacto"]
Quantization = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32",
    "unknown",
]  # fmt: skip
_Measure = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]


class MaxPrice(msgspec.Struct):
    """The highest acceptable prices: USD per million tokens, and per request or image.

    ``audio`` is that of the tokens of audio in a prompt. A rate under conditions counts if the
    request may meet them.
    """

    prompt: _Amount | None = None
    completion: _Amount | None = None
    request: _Amount | None = None
    image: _Amount | None = None
    audio: _Amount | None = None


class Percentiles(msgspec.Struct):
    """Thresholds for percentiles of an endpoint's recent requests."""

    p50: _Measure | None = None
    p75: _Measure | None = None
    p90: _Measure | None = None
    p99: _Measure | None = None


class Sorting(msgspec.Struct):
    """The measure that sorts endpoints, and whether models keep their order."""

    by: Order | None = None
    partition: Literal["model", "none"] | None = None


_Options = dict[Slug, dict[str, msgspec.Raw]]


class ProviderPreferences(msgspec.Struct):
    """The ``provider`` object: which providers may serve the request, and in which order."""

    order: Slugs | None = None
    only: Slugs | None = None
    ignore: Slugs | None = None
    allow_fallbacks: bool | None = None
    data_collection: Literal["allow", "deny"] | None = None
    zdr: bool | None = None
    max_price: MaxPrice | None = None
    quantizations: Annotated[list[Quantization], msgspec.Meta(max_length=32)] | None = None
    require_parameters: bool | None = None
    enforce_distillable_text: bool | None = None
    sort: Order | Sorting | None = None
    preferred_max_latency: _Measure | Percentiles | None = None
    preferred_min_throughput: _Measure | Percentiles | None = None
    options: Annotated[_Options, msgspec.Meta(max_length=32)] | None = None


class Plugin(msgspec.Struct):
    """A plugin; ``read_plugins`` reads it, with the members of each kind."""

    id: str
    enabled: bool | None = None


class Completion(msgspec.Struct, kw_only=True):
    """The members that the bodies of chat and text completions share."""

    model: Slug | None = None
    models: Slugs | None = None
    provider: ProviderPreferences | None = None
    plugins: Annotated[list[Plugin], msgspec.Meta(max_length=32)] | None = None
    user: User | None = None
    session_id: Session | None = None
    trace: Trace | None = None
    stream: bool | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    frequency_penalty: _Number | None = None
    presence_penalty: _Number | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=MAX_STOPS)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
