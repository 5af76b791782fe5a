"""Describes image models as ``GET /images/models`` lists them.

OpenRouter's interface describes each parameter of an image request by its values, its range or the
fact that it exists, and each price by a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, cast, get_args, get_origin
from urllib.parse import quote

import msgspec

from catalog import dialects
from catalog.dialects.base import ImagesDialect, Operation
from catalog.dialects.shared.images.pictures import PARAMETERS
from catalog.models import LanguageModel, ModelEndpoint
from catalog.operations import served_operations
from catalog.pricing import Billable, Price
from catalog.pricing.price import ONE
from catalog.pricing.rates import EXACT
from inference.requests.operations.images.schema import ImagesRequest

_EXISTS: Final = {"type": "boolean"}


def _describe_member(kind: Any) -> Mapping[str, Any] | None:
    """Returns the values or the range that the type of a member allows, if it has any."""
    for each in (kind, *get_args(kind)):
        if get_origin(each) is Literal:
            return {"type": "enum", "values": list(get_args(each))}
        for meta in getattr(each, "__metadata__", ()):
            if meta.le is not None:
                return {"type": "range", "min": meta.ge, "max": meta.le}
    return None


# What a request may say of each parameter.
DESCRIPTORS: Final = {
    field.name: descriptor
    for field in msgspec.structs.fields(ImagesRequest)
    if field.name in PARAMETERS and (descriptor := _describe_member(field.type)) is not None
}
# The interface does not count a stream among the parameters.
_STREAM: Final = "stream"
# What the lines of the interface call our kinds of rates.
_LINES: Final[Mapping[tuple[Billable, str], tuple[str, str]]] = {
    (Billable.PROMPT, ""): ("input_text", "token"),
    (Billable.PROMPT, "image"): ("input_image", "token"),
    (Billable.COMPLETION, ""): ("output_text", "token"),
    (Billable.COMPLETION, "image"): ("output_image", "token"),
    (Billable.IMAGE, "input"): ("input_image", "image"),
    (Billable.REQUEST, ""): ("output_image", "request"),
}


def find_parameters(endpoint: ModelEndpoint) -> frozenset[str] | None:
    """Returns the parameters of images that an endpoint supports; ``None`` if it makes no images.

    An endpoint that lists none of them supports those that its wire format has.
    """
    model = endpoint.model
    dialect = dialects.get(endpoint.provider.dialect, model.capabilities)
    if Operation.IMAGES not in served_operations(model.output_modalities, dialect):
        return None
    listed = PARAMETERS.intersection(endpoint.supported_parameters or model.supported_parameters)
    return cast(ImagesDialect, dialect).image_parameters(listed)


def describe_parameters(names: Iterable[str]) -> dict[str, Any]:
    """Returns the descriptor of each parameter, by its name."""
    return {name: DESCRIPTORS.get(name, _EXISTS) for name in sorted({*names} - {_STREAM})}


def describe_model(model: LanguageModel, names: Iterable[str]) -> dict[str, Any]:
    """Returns the row of a model; ``names`` are the parameters of all its endpoints."""
    names = frozenset(names)
    return {
        "id": model.slug,
        "name": model.name,
        "description": model.description,
        "created": model.created,
        "architecture": {
            "input_modalities": model.input_modalities,
            "output_modalities": model.output_modalities,
        },
        "endpoints": f"/api/v1/images/models/{quote(model.canonical_slug, safe='/:@')}/endpoints",
        "supported_parameters": describe_parameters(names),
        "supports_streaming": _STREAM in names,
    }


def describe_endpoint(endpoint: ModelEndpoint, names: Iterable[str]) -> dict[str, Any]:
    """Returns the row of an endpoint with these parameters.

    Any field of ``provider.options`` reaches its provider, which alone knows its names.
    """
    names = frozenset(names)
    return {
        "provider_name": endpoint.provider.name,
        "provider_slug": endpoint.provider.slug,
        "provider_tag": endpoint.provider.slug,
        "supported_parameters": describe_parameters(names),
        "supports_streaming": _STREAM in names,
        "allowed_passthrough_parameters": [],
        "pricing": list_prices(endpoint.price.price),
    }


def list_prices(price: Price) -> list[dict[str, Any]]:
    """Returns the lines of a price: the rates without conditions, in USD after the discount."""
    factor = EXACT.subtract(ONE, price.discount)
    lines: list[dict[str, Any]] = []
    for kind, rate in price.base.items():
        billable, variant = kind
        is_generated = billable is Billable.IMAGE and variant != "input"
        if not rate or not (is_generated or kind in _LINES):
            continue
        name, unit = ("output_image", "image") if is_generated else _LINES[kind]
        line = {"billable": name, "unit": unit, "cost_usd": float(EXACT.multiply(rate, factor))}
        lines.append(line | {"variant": variant} if is_generated and variant else line)
    return lines
