"""Answers the requests of a guardrail's form before it is saved; stores nothing."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_post_parameters

from accounts.admin.guardrails import pickers
from accounts.admin.guardrails.backtest import answer_backtest
from accounts.admin.guardrails.trial import try_filters
from accounts.models import Guardrail
from config.console.base import ConsoleAdmin


class GuardrailFormViews(ConsoleAdmin):
    """Answers the pickers, the box to try a text, and the button of the backtest."""

    def has_assign_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.change_guardrail")

    def get_urls(self) -> list[Any]:
        return [
            path(part, self.admin_site.admin_view(view), name=f"accounts_guardrail_{name}")
            for part, name, view in (
                ("choices/models/", "models", self.models_view),
                ("choices/providers/", "providers", self.providers_view),
                ("try-filters/", "try_filters", self.try_view),
                ("backtest/", "backtest_new", self.backtest_new_view),
                ("<path:object_id>/backtest/", "backtest", self.backtest_view),
                ("<path:object_id>/choices/keys/", "keys", self.keys_view),
                ("<path:object_id>/choices/members/", "members", self.members_view),
            )
        ] + super().get_urls()

    def models_view(self, request: HttpRequest) -> HttpResponse:
        self._require_editor(request)
        return pickers.search_models(request)

    def providers_view(self, request: HttpRequest) -> HttpResponse:
        self._require_editor(request)
        return pickers.search_providers(request)

    def keys_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        guardrail = self._require_guardrail(request, object_id)
        return pickers.search_keys(request, guardrail.organization_id)

    def members_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        guardrail = self._require_guardrail(request, object_id)
        return pickers.search_members(request, guardrail.organization_id)

    @method_decorator(sensitive_post_parameters())
    def try_view(self, request: HttpRequest) -> HttpResponse:
        """Shows what the filters of a form do to a text; neither is stored."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        self._require_editor(request)
        return try_filters(request)

    @method_decorator(sensitive_post_parameters())
    def backtest_new_view(self, request: HttpRequest) -> HttpResponse:
        """Shows what the form of a new guardrail would have refused."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = self.get_form(request)(request.POST, instance=Guardrail())
        return answer_backtest(request, form, None)

    @method_decorator(sensitive_post_parameters())
    def backtest_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Shows what the changed form of a guardrail would have refused."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        guardrail = self._require_guardrail(request, object_id)
        # A bound form writes into its instance.
        instance = self.get_object(request, object_id)
        form = self.get_form(request, guardrail, change=True)(request.POST, instance=instance)
        return answer_backtest(request, form, guardrail)

    def _require_editor(self, request: HttpRequest) -> None:
        """Raises :class:`PermissionDenied` for an operator who fills in no form of a guardrail."""
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied

    def _require_guardrail(self, request: HttpRequest, object_id: str) -> Guardrail:
        """Returns the guardrail whose assignments the operator may change."""
        if not self.has_assign_permission(request):
            raise PermissionDenied
        guardrail: Guardrail | None = self.get_object(request, object_id)
        if guardrail is None:
            raise Http404
        return guardrail
