"""Binds stored credentials to where they are used, so that nothing that works stops working."""

from __future__ import annotations

from collections import defaultdict
from urllib.parse import urlsplit

from django.db import migrations

from config.egress.domains import scope_of


def bind_credentials(apps, schema_editor):
    """Binds each credential without ``allowed_hosts`` to the domains of its endpoints.

    Those are the endpoints of its organization and provider that were activated, because requests
    may use any credential for them, and the drafts that it validated.
    """
    endpoints = (
        apps.get_model("endpoints", "PrivateEndpoint")
        .objects.using(schema_editor.connection.alias)
        .filter(deleted_at=None, base_url__isnull=False)
    )
    scopes = defaultdict(set)
    activated = endpoints.filter(status__in=("active", "disabled"))
    for organization_id, slug, base_url in activated.values_list(
        "organization_id", "provider__slug", "base_url"
    ).iterator():
        scopes[organization_id, slug].add(_scope_of(base_url))
    validated = endpoints.filter(status="draft", validation__outcome="passed")
    for credential_id, base_url in validated.values_list(
        "validation__credential_id", "base_url"
    ).iterator():
        scopes[credential_id].add(_scope_of(base_url))
    credentials = (
        apps.get_model("accounts", "ByokCredential")
        .objects.using(schema_editor.connection.alias)
        .filter(deleted_at=None, allowed_hosts=None, bound_domains=None)
    )
    for credential in credentials.only("organization_id", "provider_slug").iterator():
        found = (
            scopes[credential.organization_id, credential.provider_slug] | scopes[credential.pk]
        ) - {""}
        if found:
            credential.bound_domains = sorted(found)
            credential.save(update_fields=["bound_domains"])


def _scope_of(base_url):
    try:
        host = urlsplit(base_url).hostname
    except ValueError:
        return ""
    return scope_of(host) if host else ""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_bound_domains"),
        ("endpoints", "0002_slots"),
    ]

    operations = [migrations.RunPython(bind_credentials, migrations.RunPython.noop, elidable=True)]
