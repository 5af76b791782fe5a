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
from config.api.document import DocumentView
from config.console.apps import discover_pages
from config.pages.guide import serve_guide
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

router.register("credits/crypto", CryptoTopUpViewSet, "crypto-top-up")
router.register("credits/coinbase", CoinbaseChargeViewSet, "coinbase-charge")
router.register("models/count", ModelsCountViewSet, "models-count")
router.register("models/user", UserModelViewSet, "user-model")
router.register("embeddings/models", EmbeddingsModelViewSet, "embeddings-model")
router.register("images/models", ImageModelViewSet, "image-model")
router.register("endpoints/zdr", ZdrEndpointViewSet, "zdr-endpoint")
router.register("providers", ProviderViewSet, "provider")
router.register("routing/explain", ExplanationViewSet, "explanation")
router.register("generation/feedback", FeedbackViewSet, "feedback")
router.register("activity", ActivityViewSet, "activity")

# What is one thing without an id, or has slashes in its id, is mapped by hand. The routes of the
# router come first: `models/user` is no model.
api: list[URLPattern | URLResolver] = [
    path("", include(router.urls)),
    path("key", CurrentKeyViewSet.as_view({"get": "retrieve"})),
    # Older clients ask here.
    path("auth/key", CurrentKeyViewSet.as_view({"get": "retrieve"}, schema=None)),
    path("credits", CreditsViewSet.as_view({"get": "retrieve"})),
    path(
        "organization/settings",
        SettingsViewSet.as_view({"get": "retrieve", "patch": "partial_update"}),
    ),
    path("models", ModelViewSet.as_view({"get": "list"})),
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
    path(
        "images/models/<str:author>/<path:slug>/endpoints",
        ImageModelViewSet.as_view({"get": "endpoints"}),
    ),
    path("generation", GenerationViewSet.as_view({"get": "retrieve"})),
    path(
        "generation/content",
        ContentViewSet.as_view({"get": "content", "delete": "delete_content"}),
    ),
    path("analytics/meta", AnalyticsViewSet.as_view({"get": "meta"})),
    path("analytics/query", AnalyticsViewSet.as_view({"post": "query"})),
    path("openapi.json", DocumentView.as_view(), name="openapi"),
]

reference = SpectacularSwaggerSplitView.as_view(
    url_name="openapi", template_name="reference.html", http_method_names=["get", "head"]
)

discover_pages()

urlpatterns = [
    path("", landing, name="landing"),
    path("api/v1/", include(api)),
    path("docs", reference, name="docs"),
    path("docs/guide", serve_guide, name="guide"),
    path("docs/guide/", serve_guide),
    path("docs/guide/<path:name>", serve_guide),
    path("admin/", admin.site.urls),
    path("metrics", metrics),
    path("pay/<uuid:pk>", pay.show_page, name="pay"),
    path("pay/<uuid:pk>/status", pay.show_status),
]

handler400 = "config.pages.handlers.bad_request"
handler403 = "config.api.handler.permission_denied"
handler404 = "config.pages.handlers.page_not_found"
handler500 = "config.pages.handlers.server_error"
