"""Compares a provider's usage export with the generations, in the console; changes nothing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse

from accounts.admin.uploads import OrganizationField
from catalog.models import Provider
from config.api.text import plain_digits
from config.bulk.problems import ImportRefused
from config.console.formatting import render_page, render_table
from config.console.forms import RateFormField
from config.console.unfold import SelectWidget, unfold_action
from config.console.uploads import UploadForm
from inference.reports.invoices import read_invoice
from inference.reports.reconciliation import Reconciliation, describe_side, reconcile
from inference.reports.rollups import RowsArchived

_FINDINGS = {
    "matched": "Matched",
    "missing_here": "Only in the export",
    "missing_there": "Only in our generations",
    "differing": "Different",
}


class InvoiceForm(UploadForm):
    """Asks for a provider, its export, and the account that it bills."""

    command = "the command reconcile_invoice"
    provider = forms.ModelChoiceField(
        Provider.objects.order_by("slug"), to_field_name="slug", widget=SelectWidget()
    )
    organization = OrganizationField(
        required=False,
        help_text="The slug or the ID, for the bill of its own account. Leave it empty for yours.",
    )
    tolerance = RateFormField(
        required=False,
        label="Tolerance, USD",
        help_text="The difference of costs to accept, besides rounding.",
    )
    field_order = ("provider", "organization", "tolerance", "file")


@unfold_action(
    description="Reconcile an invoice",
    permissions=["billing.add_transfer"],
    url_path="reconcile-invoice",
    icon="receipt_long",
)
def reconcile_invoice(page: Any, request: HttpRequest) -> HttpResponse:
    """Compares a provider's export with the generations, and shows the result."""
    if request.method != "POST":
        return _render(page, request, InvoiceForm())
    form = InvoiceForm(request.POST, request.FILES)
    if not form.is_valid():
        return _render(page, request, form)
    given, upload = form.cleaned_data, form.upload
    try:
        lines = read_invoice(upload.content)
        found = reconcile(
            given["provider"],
            lines,
            organization_id=upload.organization_id,
            tolerance=given["tolerance"] or Decimal(0),
        )
    except ImportRefused as exc:
        return _render(page, request, form, refusals=exc.problems)
    except RowsArchived as exc:
        return _render(page, request, form, refusals=[str(exc)])
    return _render(
        page, request, None, name=upload.name, provider=given["provider"], **_describe(found)
    )


def _describe(found: Reconciliation) -> dict[str, Any]:
    counts = [(text, f"{getattr(found, name):,}") for name, text in _FINDINGS.items()]
    there = "not stated" if found.total_there is None else f"${plain_digits(found.total_there)}"
    return {
        "agrees": found.agrees,
        "counts": render_table(("Lines and generations", "Number"), counts),
        "totals": render_table(
            ("Total", "USD"),
            [("Export", there), ("Our generations", f"${plain_digits(found.total_here)}")],
        ),
        "rows": render_table(
            ("Finding", "Day, model and ID", "Our generations", "Export"),
            [
                (
                    _FINDINGS[row["finding"]],
                    row["row"],
                    describe_side(row["here"]),
                    describe_side(row["there"]),
                )
                for row in found.rows
            ],
        ),
        "hidden": found.missing_here + found.missing_there + found.differing - len(found.rows),
    }


def _render(
    page: Any, request: HttpRequest, form: InvoiceForm | None, **context: Any
) -> HttpResponse:
    template, title = "admin/inference/invoice.html", "Reconcile an invoice"
    return render_page(page, request, template, title, form=form, **context)
