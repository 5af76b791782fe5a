"""The subjects of the usage component: what each kind of object is in the traffic."""

from __future__ import annotations

from accounts.models import ApiKey, Organization, Workspace
from catalog.models import LanguageModel, ModelEndpoint, Provider
from endpoints.models import PrivateEndpoint
from endusers.models import EndUser
from inference.reports.usage.panel import Subject
from inference.reports.usage.sums import UsageScope


def of_organization(organization: Organization) -> Subject:
    return Subject(
        UsageScope({"organization_id": organization.pk}),
        {"organization__id__exact": str(organization.pk)},
        ("models", "keys"),
    )


def of_workspace(workspace: Workspace) -> Subject:
    return Subject(
        UsageScope({"organization_id": workspace.organization_id, "workspace_id": workspace.pk}),
        {
            "organization__id__exact": str(workspace.organization_id),
            "workspace__id__exact": str(workspace.pk),
        },
        ("models", "keys"),
    )


def of_key(key: ApiKey) -> Subject:
    return Subject(
        UsageScope({"organization_id": key.organization_id, "api_key_id": key.pk}),
        {"api_key__id__exact": str(key.pk)},
        ("models", "providers"),
    )


def of_end_user(end_user: EndUser) -> Subject:
    return Subject(
        UsageScope({"organization_id": end_user.organization_id, "end_user": end_user.user}),
        {
            "organization__id__exact": str(end_user.organization_id),
            "end_user__exact": end_user.user,
        },
        ("models", "keys"),
    )


def of_private_endpoint(endpoint: PrivateEndpoint) -> Subject:
    return Subject(
        UsageScope({"endpoint_id": endpoint.pk}),
        {
            "organization__id__exact": str(endpoint.organization_id),
            "private_endpoint__id__exact": str(endpoint.pk),
        },
    )


def of_public_endpoint(endpoint: ModelEndpoint) -> Subject:
    return Subject(
        UsageScope({"endpoint_id": endpoint.pk}),
        {"model_endpoint__id__exact": str(endpoint.pk)},
    )


def of_model(model: LanguageModel) -> Subject:
    return Subject(UsageScope({"model": model.slug}), {"model__exact": model.slug}, ("providers",))


def of_provider(provider: Provider) -> Subject:
    return Subject(
        UsageScope({"provider_name": provider.name}),
        {"provider_name__exact": provider.name},
        ("models",),
    )
