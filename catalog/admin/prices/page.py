"""The page that edits a price: a form, a preview of what changes, and a new price version."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec
from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from catalog.admin.prices.forms import (
    MOST_ROWS,
    RatesForm,
    RuleForm,
    RuleFormSet,
    describe_problem,
    list_variants,
)
from catalog.models import require_basis
from catalog.pricing import RATES, Price, dump_rules, load_rules
from catalog.pricing.contract import InvalidPricing, Line, Pricing, read_price
from catalog.pricing.rules import COLUMNS
from catalog.sync.plans.columns import find_price_changes
from config.api.errors import GatewayError
from config.bulk.report import PlanRow, RowOutcome
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.models import ChangeSet
from config.changes.pages import PageOperation
from config.changes.proposals import PRICE, REASON
from config.console.formatting import render_page
from config.console.unfold import unfold_action

_LINE: Final = re.compile(r"lines\[([0-9]+)\]\.?(?:conditions\.?)?(\w*)")
_RATES: Final = "rates"
_RULES: Final = "rules"
_GUARD: Final = FourEyes((ChangeKind.PRICES,))


@unfold_action(description="Edit price", permissions=["reprice"], url_path="price", icon="sell")
def edit_price(page: Any, request: HttpRequest, object_id: str) -> Any:
    """Edits the price of an endpoint, which has ``reprice``.

    Nothing is stored before the operator has seen what changes. The form remembers the price
    version that it shows, so that a price which another operator has set meanwhile is not replaced
    unseen.
    """
    endpoint = page.get_object(request, unquote(object_id))
    if endpoint is None:
        return page.redirect_to_index(request, object_id)
    if (rows := len(endpoint.price.price.rules)) > MOST_ROWS:
        text = f"This price has {rows} rows; the page takes {MOST_ROWS}. Change it by a "
        page.message_user(request, f"{text}catalogue file.", messages.ERROR)
        return HttpResponseRedirect(page.url_of(request, endpoint))
    editor = _Editor(endpoint.price.price, request)
    if request.method == "POST" and "add" not in request.POST and editor.is_valid():
        if _is_seen(request, editor.price) and "save" in request.POST:
            try:
                if (kind := _GUARD.find_demand(None)) is not None:
                    return _propose_price(page, request, endpoint, editor, kind)
                has_changed = endpoint.reprice(editor.price, basis=_read_basis(request))
            except GatewayError as exc:
                return _show_price(page, request, endpoint, editor, refusal=exc.message)
            page.message_user(request, _tell(has_changed=has_changed), messages.SUCCESS)
            return HttpResponseRedirect(page.url_of(request, endpoint))
        return _show_price(page, request, endpoint, editor, is_preview=True)
    return _show_price(page, request, endpoint, editor)


def _tell(*, has_changed: bool) -> str:
    return "The new price is saved." if has_changed else "The price is the same."


def _propose_price(
    page: Any, request: HttpRequest, endpoint: Any, editor: _Editor, kind: ChangeKind
) -> Any:
    basis = _read_basis(request)
    require_basis(endpoint.price_id, basis)
    stored = endpoint.price.price
    if editor.price == stored:
        page.message_user(request, _tell(has_changed=False), messages.SUCCESS)
        return HttpResponseRedirect(page.url_of(request, endpoint))
    proposal = page.make_proposal(
        endpoint,
        kind,
        PRICE,
        needs=f"{page.opts.app_label}.change_{page.opts.model_name}",
        arguments={"price": write_price(editor.price)},
        state=_read_state(endpoint),
        changes=find_price_changes(stored, editor.price),
    )
    return page.propose(request, proposal)


def _read_state(endpoint: Any) -> dict[str, str]:
    return {"price_id": str(endpoint.price_id)}


def _apply(page: Any, request: HttpRequest, change_set: ChangeSet, target: Any) -> str:
    price = parse_price(change_set.arguments["price"])
    return _tell(has_changed=target.reprice(price, basis=int(change_set.state["price_id"])))


PRICING: Final = PageOperation(
    may_apply=lambda page, request, target: page.has_reprice_permission(request, target),
    read_state=lambda page, request, change_set, target: _read_state(target),
    apply=_apply,
)
"""A new price as a change set."""


def _show_price(
    page: Any,
    request: HttpRequest,
    endpoint: Any,
    editor: _Editor,
    *,
    is_preview: bool = False,
    refusal: str = "",
) -> HttpResponse:
    stored = endpoint.price.price
    context: dict[str, Any] = {}
    if is_preview:
        changes = find_price_changes(stored, editor.price)
        rows = [PlanRow("endpoint", str(endpoint), RowOutcome.UPDATE, changes)] if changes else []
        context = {
            "rows": rows,
            "has_changes": editor.price != stored,
            "seen": _digest(editor.price),
        }
    return render_page(
        page,
        request,
        "admin/catalog/price.html",
        f"Price of {endpoint}",
        back=page.url_of(request, endpoint),
        rates=editor.rates,
        rules=editor.rules,
        variants=list_variants(),
        basis=_read_basis(request) or endpoint.price_id,
        refusal=refusal,
        demand=_GUARD.find_demand(None),
        reason=request.POST.get(REASON, ""),
        is_preview=is_preview,
        **context,
    )


class _Editor:
    """The forms of one price, and the price that they state once they are valid."""

    def __init__(self, stored: Price, request: HttpRequest) -> None:
        self.price = stored
        if request.method == "POST":
            data = request.POST.copy()
            total = f"{_RULES}-TOTAL_FORMS"
            count = str(data.get(total, ""))
            if "add" in data and count.isascii() and count.isdecimal() and len(count) < 4:
                data[total] = str(int(count) + 1)
            self.rates = RatesForm(data, prefix=_RATES)
            self.rules = RuleFormSet(data, prefix=_RULES)
        else:
            self.rates = RatesForm(initial=RatesForm.read(stored), prefix=_RATES)
            rules = [RuleForm.read(rule) for rule in stored.rules]
            self.rules = RuleFormSet(initial=rules, prefix=_RULES)
            self.rules.extra = 0

    def is_valid(self) -> bool:
        """Reads the price; puts each problem at its field."""
        if not (self.rates.is_valid() & self.rules.is_valid()):
            return False
        # A new row that was left empty has no values.
        kept = [
            form
            for form in self.rules.forms
            if form.cleaned_data and not form.cleaned_data.get("DELETE")
        ]
        try:
            self.price = read_price(
                msgspec.convert(self.rates.members, Pricing),
                msgspec.convert([form.line for form in kept], list[Line]),
            )
        except InvalidPricing as exc:
            self._add_problems(exc, kept)
            return False
        return True

    def _add_problems(self, exc: InvalidPricing, kept: list[RuleForm]) -> None:
        place_of = {f"pricing.{kind.key}": column for column, kind in COLUMNS.items()}
        place_of["pricing.discount"] = "discount"
        labels = {path: str(self.rates.fields[column].label) for path, column in place_of.items()}
        shown = {index: self.rules.forms.index(form) for index, form in enumerate(kept)}
        for path, reason in exc.problems:
            reason = re.sub(
                r"lines\[([0-9]+)\]", lambda match: f"lines[{shown[int(match[1])]}]", reason
            )
            text = describe_problem(reason, labels)
            if (match := _LINE.fullmatch(path)) is not None:
                form = kept[int(match[1])]
                field = match[2] if match[2] in form.fields else "billable"
                form.add_error(field, text)
            else:
                self.rates.add_error(place_of.get(path), text)


def write_price(price: Price) -> dict[str, Any]:
    """Returns a price as JSON that loses no digit."""
    rates = {name: getattr(price, name) for name in RATES}
    texts = {name: None if rate is None else str(rate) for name, rate in rates.items()}
    return {**texts, "discount": str(price.discount), "rules": dump_rules(price.rules)}


def parse_price(stored: Mapping[str, Any]) -> Price:
    """Returns the price that :func:`write_price` wrote."""
    rates = {
        name: None if text is None else Decimal(text)
        for name, text in stored.items()
        if name != "rules"
    }
    return Price(**rates, rules=load_rules(stored["rules"]))  # type: ignore[arg-type]


def _digest(price: Price) -> str:
    stated = [str(value) for value in (*price.base.items(), price.discount)]
    return hashlib.sha256(repr([stated, dump_rules(price.rules)]).encode()).hexdigest()


def _is_seen(request: HttpRequest, price: Price) -> bool:
    """Returns whether the preview of exactly this price was shown."""
    return request.POST.get("seen") == _digest(price)


def _read_basis(request: HttpRequest) -> int | None:
    """Returns the price version that the page shows."""
    text = request.POST.get("basis", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
