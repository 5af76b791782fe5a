"""Disables the credentials that deleted private providers have left.

Release 1.0.0 deleted a provider before its credentials. A later provider of the slug, even one of
the catalogue, would get the secrets. Owners find them as before, and may enable or delete them.
"""

from django.db import migrations

# A provider of the slug that was made anew uses them. Where the catalogue has the slug, its provider
# uses those that their owner has edited since.
ORPHANS = """
UPDATE accounts_byokcredential AS c SET disabled = true, updated_at = now()
FROM endpoints_privateprovider AS gone
WHERE gone.organization_id = c.organization_id AND gone.slug = c.provider_slug
    AND gone.deleted_at >= c.created_at AND c.deleted_at IS NULL AND NOT c.disabled
    AND NOT EXISTS (
        SELECT FROM endpoints_privateprovider AS present
        WHERE present.organization_id = c.organization_id AND present.slug = c.provider_slug
            AND present.deleted_at IS NULL
    )
    AND (
        c.updated_at <= gone.deleted_at
        OR NOT EXISTS (SELECT FROM catalog_provider WHERE slug = c.provider_slug)
    )
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_first_release"),
        ("catalog", "0001_first_release"),
        ("endpoints", "0001_first_release"),
    ]

    operations = [migrations.RunSQL(ORPHANS, migrations.RunSQL.noop)]
