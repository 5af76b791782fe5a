"""Formats amounts of money, labels and tables for the console's pages, and whole pages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from decimal import Context, Decimal
from typing import Any, Final

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html

from config.api.text import plain_digits

# Wide enough that no price or balance is rounded.
_EXACT: Final = Context(prec=80)
_NANO: Final = 10**9
_CENT: Final = Decimal("0.01")
NOTHING: Final = "–"
LONGEST: Final = 2_000
"""The most characters of a value that a page shows."""
_DIGEST_LENGTH: Final = 16


def dollars(amount: Decimal) -> str:
    """Returns USD without an exponent, however small: ``$0.000012``, ``-$0.5``, ``$1,250``."""
    sign = "-" if amount < 0 else ""
    whole, point, fraction = plain_digits(abs(amount)).partition(".")
    return f"{sign}${int(whole):,}{point}{fraction}"


def nano_dollars(nano: int) -> str:
    """Returns nano-USD as USD."""
    return dollars(_EXACT.scaleb(Decimal(nano), -9))


def short_dollars(nano: int) -> str:
    """Returns nano-USD as USD: with cents from one dollar on, else with two significant digits."""
    if nano == 0 or abs(nano) >= _NANO:
        amount = Decimal(abs(nano)).scaleb(-9).quantize(_CENT)
        return f"{'-' if nano < 0 else ''}${amount:,}"
    small: int = 10 ** max(len(str(abs(nano))) - 2, 0)
    return nano_dollars(abs(nano) // small * small * (-1 if nano < 0 else 1))


def rounded_dollars(nano: int) -> str:
    """Returns nano-USD as :func:`short_dollars`, with the exact amount on hover."""
    return format_html('<span title="{}">{}</span>', nano_dollars(nano), short_dollars(nano))


def short_count(count: int) -> str:
    """Returns a count with commas, or from a million on in short form: 12,345 or 1.2M."""
    for size, letter in ((10**9, "G"), (10**6, "M")):
        if count >= size:
            return f"{count // (size // 10) / 10:,.1f}{letter}"
    return f"{count:,}"


def shift_digits(rate: Decimal, places: int) -> Decimal:
    """Returns a rate for another number of units, exactly; 6 makes it one per million."""
    return _EXACT.scaleb(rate, places)


def per_million(rate: Decimal | None) -> str | None:
    """Returns a rate per token as USD per million tokens, the unit of providers' price lists."""
    return None if rate is None else dollars(shift_digits(rate, 6))


def write_difference(
    label: str, texts: tuple[str, str], values: tuple[Any, Any], *, longest: int = LONGEST
) -> tuple[str, str, str]:
    """Returns the label, the old and the new text of a value, so that no two values look equal.

    ``texts`` of at most ``longest`` characters are whole. Of longer lists and objects, those
    entries alone are shown that only one of the two ``values`` has. Other texts are cut.
    """
    if max(map(len, texts)) > longest:
        before, after = map(_list_entries, values)
        if before is not None and after is not None and before.keys() != after.keys():
            gone = ", ".join(entry for entry in before if entry not in after)
            new = ", ".join(entry for entry in after if entry not in before)
            label, texts = f"{label}: removed → added", (gone or NOTHING, new or NOTHING)
            longest = LONGEST
    old, now = (_cut(text, longest) for text in texts)
    return label, old, now


def _list_entries(value: Any) -> dict[str, None] | None:
    """Returns the entries of a list or an object as texts; ``None`` for any other value."""
    if isinstance(value, dict):
        members = ({name: member} for name, member in value.items())
        return dict.fromkeys(json.dumps(each, ensure_ascii=False)[1:-1] for each in members)
    if isinstance(value, list):
        return dict.fromkeys(map(str, value))
    return {} if value is None else None


def _cut(text: str, longest: int) -> str:
    """Returns a text that a page can show; a digest tells apart those with the same beginning."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text):,} characters, SHA-256 {digest(text.encode())}…)"


def digest(value: Any) -> str:
    """Returns a short digest of a value: of bytes themselves, else of what represents it."""
    data = bytes(value) if isinstance(value, bytes | memoryview) else repr(value).encode()
    return hashlib.sha256(data).hexdigest()[:_DIGEST_LENGTH]


def label_renderer(variants: dict[str, str]) -> Callable[[str], str]:
    """Returns a function that renders a read-only field as the coloured label of the lists.

    ``variants`` maps the field's text to a colour of unfold, such as ``success``.
    """

    def render(text: str) -> str:
        if not text:
            return text
        context = {"text": text, "type": variants.get(str(text))}
        return render_to_string("unfold/helpers/label.html", context)

    return render


def render_table(headers: Iterable[str], rows: Iterable[Iterable[Any]], *, empty: str = "") -> str:
    """Renders a table; ``empty`` is the text for a table without rows."""
    context = {"headers": tuple(headers), "rows": list(rows), "empty": empty}
    return render_to_string("admin/table.html", context)


def render_plan(rows: Iterable[Any]) -> str:
    """Renders rows of a plan (:class:`config.bulk.report.PlanRow`) as a table."""
    return render_to_string("admin/plan.html", {"rows": list(rows), "empty": "Nothing changes."})


def list_url(page: Any) -> str:
    """Returns the address of a page's list."""
    return reverse(f"admin:{page.opts.app_label}_{page.opts.model_name}_changelist")


def render_page(
    page: Any,
    request: HttpRequest,
    template: str,
    title: str,
    *,
    headers: dict[str, Any] | None = None,
    **context: Any,
) -> TemplateResponse:
    """Returns a page beside the list of a model, with what every page of the console has."""
    request.current_app = page.admin_site.name
    form = context.get("form")
    shared = {
        **page.admin_site.each_context(request),
        "title": title,
        "opts": page.opts,
        "media": page.media if form is None else page.media + form.media,
        "list": list_url(page),
    }
    return TemplateResponse(request, template, {**shared, **context}, headers=headers)
