"""The kinds of changes for which a second person can be demanded, and who needs one when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db.models import TextChoices


class ChangeKind(TextChoices):
    """What changes; an operator switches the demand for a second person on for each."""

    PRICES = "prices", "Prices"
    GUARDRAILS = "guardrails", "Workspace-wide guardrails"
    DELETIONS = "deletions", "Deletions"
    CREDENTIALS = "credentials", "Provider credentials"
    MANAGEMENT_KEYS = "management_keys", "Management keys"


DESCRIPTIONS = {
    ChangeKind.PRICES: "Prices of endpoints, new endpoints with a price, proposals of price lists, "
    "and imports of the catalogue.",
    ChangeKind.GUARDRAILS: "Guardrails of whole workspaces, also their deletion and the "
    "enforcement of their shadows, the preferences of organizations, the fallback of workspaces "
    "and private endpoints, and imports of private endpoints.",
    ChangeKind.DELETIONS: "Deletions of workspaces, guardrails, credentials, presets, aliases, "
    "private endpoints, broadcast destinations, operators and groups.",
    ChangeKind.CREDENTIALS: "Base URLs, dialects and credentials of providers, new providers, "
    "credentials of organizations, and validations at a host that nobody has named.",
    ChangeKind.MANAGEMENT_KEYS: "New management keys, and their rotation. The operator who "
    "approves one sees it, once.",
}


@dataclass(frozen=True, slots=True)
class FourEyes:
    """Says which operations of a page need a second person, once the rule of a kind demands it.

    ``needs`` is the permission that both people must have, such as ``accounts.delete_guardrail``;
    a form needs that to add or to change a row. ``fields`` are the fields of a form that matter;
    all if there are none. ``is_guarded`` narrows this to certain objects. ``describe`` returns what
    people see of the operation of a dialog, before the dialog's fields.
    """

    kinds: tuple[ChangeKind, ...]
    needs: str = ""
    fields: Collection[str] = ()
    guards_new_rows: bool = False
    is_guarded: Callable[[Any], bool] | None = None
    describe: Callable[[Any, Any], Sequence[Any]] | None = None

    @property
    def model_label(self) -> str:
        """The label of the model that ``needs`` names."""
        app, _, codename = self.needs.partition(".")
        return f"{app}.{codename.partition('_')[2]}"

    def find_demand(self, obj: Any) -> ChangeKind | None:
        """Returns the kind by which an operation on an object needs a second person now."""
        if obj is not None and self.is_guarded is not None and not self.is_guarded(obj):
            return None
        rules = apps.get_model("config.ChangeRule")._default_manager
        demanded = set(
            rules.filter(kind__in=self.kinds, is_required=True).values_list("kind", flat=True)
        )
        return next((kind for kind in self.kinds if kind in demanded), None)

    def find_demand_of_form(self, obj: Any, changed: Collection[str]) -> ChangeKind | None:
        """Returns the kind by which the changed fields of a form need a second person now."""
        if obj is None and not self.guards_new_rows:
            return None
        if not changed or (self.fields and not set(changed) & set(self.fields)):
            return None
        return self.find_demand(obj)
