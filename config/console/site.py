"""The console's site: who may log in, with which factors, and under which security policy."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any, Final, cast

import django_otp
from csp.middleware import CSPMiddleware, PolicyParts
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordChangeView, redirect_to_login
from django.core.exceptions import BadRequest, PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.deprecation import MiddlewareMixin
from django.utils.encoding import escape_uri_path
from django.utils.safestring import mark_safe
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters

from config.api.text import NOT_STORABLE
from config.console.lists.pages import TookTooLong
from config.console.lists.saved_views import change_views
from config.console.lists.search import find_anything
from config.console.sign_in import events, totp
from config.console.sign_in.recognition import PREFIX
from config.console.sign_in.sessions import SIGNED_IN_AT
from config.console.sign_in.throttle import SignInLocked, address_of, clean_account
from config.console.unfold import AdminSite
from config.database.replica.pages import read_from_replica
from config.pages.failures import explain
from config.secrets import is_well_formed

logger = logging.getLogger("causeway.console")

_API: Final = "/api/"
_MAX_PATH: Final = 200
_TEMPLATE: Final = "admin/two_factor.html"


class ConsoleCSPMiddleware(CSPMiddleware):
    """Sends the console's own content security policy with its pages, the strict one elsewhere."""

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        parts = super().get_policy_parts(request, response, report_only)
        if not report_only and request.path_info.startswith(PREFIX):
            parts.config = settings.CONSOLE_CONTENT_SECURITY_POLICY["DIRECTIVES"]
        return parts


class ConsoleSite(AdminSite):
    """unfold's site with two-factor login, which ``ADMIN_REQUIRES_TOTP`` makes compulsory.

    An operator who has set it up must always use it, so that setting it up also ends the sessions
    that began without it.
    """

    login_form = totp.LoginForm
    login_template = "admin/log_in.html"

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        return super().admin_view(read_from_replica(view), cacheable)

    def has_permission(self, request: HttpRequest) -> bool:
        if not super().has_permission(request):
            return False
        return _is_verified(request) or not (settings.ADMIN_REQUIRES_TOTP or _has_device(request))

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Returns the applications with their lists; a request builds those of all only once."""
        if app_label is not None:
            return super().get_app_list(request, app_label)
        kept: list[Any] | None = request.__dict__.get("console_applications")
        if kept is None:
            kept = request.__dict__["console_applications"] = super().get_app_list(request)
        return kept

    def autocomplete_view(self, request: HttpRequest) -> HttpResponse:
        if NOT_STORABLE.search(request.GET.get("term", "")):
            raise BadRequest("The search term must not contain a NUL character.")
        return super().autocomplete_view(request)

    def search(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Answers the search over everything, which Ctrl+K opens; nothing is kept of it."""
        started = time.monotonic()
        term = request.GET.get("s", "")
        if not term.strip():
            return HttpResponse()
        took_too_long, results = False, []
        try:
            results = find_anything(request, term)
        except TookTooLong:
            took_too_long = True
        pages = Paginator(results, max(len(results), 1))
        context = {
            "page_obj": pages,
            "results": pages.page(1),
            "page_counter": 0,
            "execution_time": time.monotonic() - started,
            "command_show_history": False,
            "took_too_long": took_too_long,
            "is_secret": is_well_formed(term.strip()),
        }
        template = "unfold/helpers/command_results.html" if results else "admin/nothing_found.html"
        return TemplateResponse(request, template, context, headers={"HX-Trigger": "search"})

    def extra_urls(self) -> list[URLPattern]:
        return [
            path("two-factor/", self.two_factor, name="two_factor"),
            path("views/", self.admin_view(change_views), name="saved_views"),
        ]

    @method_decorator(sensitive_post_parameters("password", "otp_token"))
    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Sends an operator who lacks a required second factor to the page that sets it up."""
        if (
            request.method == "GET"
            and super().has_permission(request)
            and not self.has_permission(request)
            and totp.device_of(cast(User, request.user)) is None
        ):
            return HttpResponseRedirect(reverse("admin:two_factor"))
        response: HttpResponse = super().login(request, extra_context)
        if request.method == "POST" and isinstance(response, HttpResponseRedirect):
            # A sign-in over an open session begins a new lifetime.
            request.session.pop(SIGNED_IN_AT, None)
            _record(events.SIGNED_IN, request)
        return _state_lock(response)

    def logout(  # type: ignore[override]
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method == "POST" and request.user.is_authenticated:
            _record(events.SIGNED_OUT, request)
        return super().logout(request, extra_context)

    def password_change(  # type: ignore[override]
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Replaces the operator's own password; a wrong old one counts as a failed sign-in."""
        request.current_app = self.name
        view = PasswordChangeView.as_view(
            form_class=partial(totp.PasswordForm, request),
            success_url=reverse("admin:password_change_done"),
            extra_context={**self.each_context(request), **(extra_context or {})},
        )
        return _state_lock(cast(HttpResponse, view(request)))

    @method_decorator((never_cache, csrf_protect, sensitive_post_parameters("otp_token", "offer")))
    def two_factor(self, request: HttpRequest) -> HttpResponse:
        """Shows the operator's own second factor; a change requires a login that used it."""
        if not super().has_permission(request):
            return redirect_to_login(request.get_full_path(), reverse("admin:login"))
        user = cast(User, request.user)
        device = totp.device_of(user)
        if device is None:
            return self._enrol(request, user)
        if not _is_verified(request):
            return redirect_to_login(request.get_full_path(), reverse("admin:login"))
        return self._manage(request, user)

    def _enrol(self, request: HttpRequest, user: User) -> HttpResponse:
        """Shows the QR code of a new key, or stores the key if the first code is right."""
        form = totp.EnrolForm(request.POST if request.method == "POST" else None)
        offer = request.POST.get("offer", "") or totp.make_offer(user)
        try:
            device = totp.read_offer(user, offer)
        except totp.OfferExpired:
            offer = totp.make_offer(user)
            device = totp.read_offer(user, offer)
            form.full_clean()
            totp.add_code_error(form, "The page was open for too long. Scan the new QR code.")
        if form.is_bound and form.is_valid():
            try:
                codes = totp.enrol(device, form.cleaned_data["otp_token"])
            except totp.WrongCode:
                totp.add_code_error(
                    form, "The code does not match. Check that the clock of the phone is right."
                )
            else:
                django_otp.login(request, device)
                return self._page(request, codes=codes)
        return self._page(
            request,
            form=form,
            offer=offer,
            # The SVG is drawn here; it holds no text that anybody typed.
            qr_code=mark_safe(totp.qr_code(device)),  # noqa: S308
            key=totp.readable_key(device),
        )

    def _manage(self, request: HttpRequest, user: User) -> HttpResponse:
        """Replaces backup codes or removes the second factor, after a code was entered."""
        form = totp.CodeForm(request, user, request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            if request.POST.get("action") == "codes":
                return self._page(request, codes=totp.renew_codes(user))
            if request.POST.get("action") == "off" and not settings.ADMIN_REQUIRES_TOTP:
                totp.remove(user)
                return HttpResponseRedirect(reverse("admin:index"))
        return self._page(
            request,
            form=form,
            codes_left=totp.codes_left(user),
            is_required=settings.ADMIN_REQUIRES_TOTP,
        )

    def _page(self, request: HttpRequest, **context: Any) -> HttpResponse:
        request.current_app = self.name
        shared = {**self.each_context(request), "title": "Two-factor login"}
        return _state_lock(TemplateResponse(request, _TEMPLATE, {**shared, **context}))


def _record(outcome: str, request: HttpRequest) -> None:
    """Records an event of the operator of a request."""
    name = request.user.get_username()
    events.record(outcome, account=clean_account(name), address=address_of(request), operator=name)


def _state_lock(response: HttpResponse) -> HttpResponse:
    """Makes the page of a form that a lock refused a 429 that says when to try again."""
    form = (getattr(response, "context_data", None) or {}).get("form")
    found = () if form is None else form.errors.as_data().values()
    for error in (error for errors in found for error in errors):
        if isinstance(error, SignInLocked):
            response.status_code = 429
            response["Retry-After"] = str(error.retry_after)
    return response


def _is_verified(request: HttpRequest) -> bool:
    user: Any = request.user
    return bool(user.is_verified())


def _has_device(request: HttpRequest) -> bool:
    """Returns whether the operator has enrolled; queries the database once a request."""
    cache: Any = request
    if not hasattr(cache, "has_second_factor"):
        cache.has_second_factor = totp.device_of(cache.user) is not None
    return bool(cache.has_second_factor)


class RefusalMiddleware(MiddlewareMixin):
    """Renders in plain English what an operator may not open, and what the console does not have.

    The API answers in JSON. Django runs a ``handler403`` in another thread, whose connection to the
    database nobody closes.
    """

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, Http404) and request.path_info.startswith(PREFIX):
            context = {**admin.site.each_context(request), "title": "There is no such page"}
            return render(request, "admin/missing.html", context, status=404)
        if not isinstance(exception, PermissionDenied) or request.path_info.startswith(_API):
            return None
        roles = request.user.groups.order_by("name").values_list("name", flat=True)
        return _refuse(request, "no permission", roles=", ".join(roles))

    def process_response(
        self, request: HttpRequest, response: HttpResponseBase
    ) -> HttpResponseBase:
        return explain(request, response)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponseBase:
    """Renders a form that another site may have sent; set as ``CSRF_FAILURE_VIEW``."""
    return _refuse(request, f"CSRF check: {reason}", is_forged=True)


def _refuse(request: HttpRequest, reason: str, **context: Any) -> HttpResponse:
    """Returns the page of a refusal and logs one line; Django would log a traceback too."""
    logger.warning(
        "refused %s %s: %s (operator %s)",
        request.method,
        escape_uri_path(request.path)[:_MAX_PATH],
        reason,
        ascii(request.user.get_username()),
    )
    shared = {**admin.site.each_context(request), "title": "This was refused", **context}
    response = HttpResponse(render_to_string("admin/refused.html", shared, request), status=403)
    # Django's log_response reads this mark.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response
