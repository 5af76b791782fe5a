"""The routes of the control plane; ``inference.asgi`` has those of the data plane."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.routers import SimpleRouter

from accounts.destinations.views import DestinationViewSet
from accounts.views.credentials import ByokViewSet
from accounts.views.guardrails import GuardrailViewSet
from accounts.views.keys import CurrentKeyViewSet, KeyViewSet
from accounts.views.organizations import MemberViewSet, SettingsViewSet
from accounts.views.presets import PresetViewSet
from accounts.views.webhooks import WebhookViewSet
from accounts.views.workspaces import WorkspaceViewSet
from billing.topups import pay
from billing.views import CoinbaseChargeViewSet, CreditsViewSet, CryptoTopUpViewSet
from catalog.views import (
    AliasViewSet,
    EmbeddingsModelViewSet,
    ImageModelViewSet,
    ModelsCountViewSet,
    ModelViewSet,
    ProviderViewSet,
    UserModelViewSet,
    ZdrEndpointViewSet,
)
from config.api.openapi.document import DocumentView
from config.console.apps import discover_pages
from config.pages.landing import landing
from config.server.metrics import metrics
from endpoints.views import OwnModelViewSet, PrivateEndpointViewSet, PrivateProviderViewSet
from endusers.views import EndUserViewSet, ExternalUserViewSet
from inference.reports.views import (
    ActivityViewSet,
    AnalyticsViewSet,
    ContentViewSet,
    FeedbackViewSet,
    GenerationViewSet,
)
from inference.views import ExplanationViewSet

router = SimpleRouter(trailing_slash=False)
router.register("private-endpoints", PrivateEndpointViewSet, "private-endpoint")
router.register("private-providers", PrivateProviderViewSet, "private-provider")
router.register("keys", KeyViewSet, "key")
router.register("byok", ByokViewSet, "byok")
router.register("organization/members", MemberViewSet, "member")
router.register("workspaces", WorkspaceViewSet, "workspace")
router.register("aliases", AliasViewSet, "alias")
router.register("guardrails", GuardrailViewSet, "guardrail")
router.register("presets", PresetViewSet, "preset")
router.register("observability/destinations", DestinationViewSet, "destination")
router.register("webhooks", WebhookViewSet, "webhook")
router.register("end-users", EndUserViewSet, "end-user")
router.register("external-users", ExternalUserViewSet, "external-user")

api: list[URLPattern | URLResolver] = [
    path("key", CurrentKeyViewSet.as_view({"get": "retrieve"})),
    # Older clients ask here.
    path("auth/key", CurrentKeyViewSet.as_view({"get": "retrieve"}, schema=None)),
    path("credits", CreditsViewSet.as_view({"get": "retrieve"})),
    path("credits/coinbase", CoinbaseChargeViewSet.as_view({"post": "create"})),
    path("credits/crypto", CryptoTopUpViewSet.as_view({"post": "create"})),
    path("credits/crypto/<str:id>", CryptoTopUpViewSet.as_view({"get": "retrieve"})),
    path(
        "organization/settings",
        SettingsViewSet.as_view({"get": "retrieve", "patch": "partial_update"}),
    ),
    path("models", ModelViewSet.as_view({"get": "list"})),
    path("models/count", ModelsCountViewSet.as_view({"get": "list"})),
    path("models/user", UserModelViewSet.as_view({"get": "list"})),
    # A slug may contain slashes.
    path("models/<str:author>/<path:slug>/endpoints", ModelViewSet.as_view({"get": "endpoints"})),
    path("models/<str:author>/<path:slug>", ModelViewSet.as_view({"get": "describe"})),
    path("models/<str:name>", ModelViewSet.as_view({"get": "describe_bare"})),
    path("model/<str:author>/<path:slug>", ModelViewSet.as_view({"get": "retrieve"})),
    path("private-models", OwnModelViewSet.as_view({"get": "list", "post": "create"})),
    path(
        "private-models/<str:author>/<path:slug>",
        OwnModelViewSet.as_view(
            {"get": "retrieve", "patch": "partial_update", "delete": "destroy"}
        ),
    ),
    path("embeddings/models", EmbeddingsModelViewSet.as_view({"get": "list"})),
    path("images/models", ImageModelViewSet.as_view({"get": "list"})),
    path(
        "images/models/<str:author>/<path:slug>/endpoints",
        ImageModelViewSet.as_view({"get": "endpoints"}),
    ),
    path("endpoints/zdr", ZdrEndpointViewSet.as_view({"get": "list"})),
    path("providers", ProviderViewSet.as_view({"get": "list"})),
    path("routing/explain", ExplanationViewSet.as_view({"post": "create"})),
    path("generation", GenerationViewSet.as_view({"get": "retrieve"})),
    path(
        "generation/content",
        ContentViewSet.as_view({"get": "content", "delete": "delete_content"}),
    ),
    path("generation/feedback", FeedbackViewSet.as_view({"post": "create"})),
    path("activity", ActivityViewSet.as_view({"get": "list"})),
    path("analytics/meta", AnalyticsViewSet.as_view({"get": "meta"})),
    path("analytics/query", AnalyticsViewSet.as_view({"post": "query"})),
    path("openapi.json", DocumentView.as_view(), name="openapi"),
    path("", include(router.urls)),
]

reference = SpectacularSwaggerSplitView.as_view(
    url_name="openapi", http_method_names=["get", "head"]
)

discover_pages()

urlpatterns = [
    path("", landing, name="landing"),
    path("api/v1/", include(api)),
    path("docs", reference, name="docs"),
    path("admin/", admin.site.urls),
    path("metrics", metrics),
    path("pay/<uuid:pk>", pay.show_page, name="pay"),
    path("pay/<uuid:pk>/status", pay.show_status),
]

handler400 = "config.pages.handlers.bad_request"
handler403 = "config.api.handler.permission_denied"
handler404 = "config.pages.handlers.page_not_found"
handler500 = "config.pages.handlers.server_error"
