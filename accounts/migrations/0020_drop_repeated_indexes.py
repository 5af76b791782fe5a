"""Drops indexes whose columns another index of the same table begins with."""

import django.db.models.deletion
from django.db import migrations, models

# The name of each index, its table and its column.
INDEXES = (
    (
        "accounts_byokcredential_organization_id_27dd34ee",
        "accounts_byokcredential",
        "organization_id",
    ),
    ("accounts_member_organization_id_7191fca5", "accounts_member", "organization_id"),
    ("accounts_preset_workspace_id_8e5feb43", "accounts_preset", "workspace_id"),
    ("accounts_presetversion_preset_id_4d39e73d", "accounts_presetversion", "preset_id"),
    ("accounts_workspace_organization_id_44d371a0", "accounts_workspace", "organization_id"),
    ("accounts_workspacebudget_workspace_id_aa7b312e", "accounts_workspacebudget", "workspace_id"),
    ("accounts_workspacemember_workspace_id_cfd7c3e9", "accounts_workspacemember", "workspace_id"),
)


class Migration(migrations.Migration):
    # An index that is dropped concurrently waits for no writer and stops none.
    atomic = False

    dependencies = [
        ("accounts", "0019_stay_still_while_moving"),
    ]

    operations = [
        *(
            migrations.RunSQL(
                f"DROP INDEX CONCURRENTLY IF EXISTS {name}",
                f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table} ({column})",
            )
            for name, table, column in INDEXES
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="byokcredential",
                    name="organization",
                    field=models.ForeignKey(
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="byok_credentials",
                        to="accounts.organization",
                    ),
                ),
                migrations.AlterField(
                    model_name="member",
                    name="organization",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="members",
                        to="accounts.organization",
                    ),
                ),
                migrations.AlterField(
                    model_name="preset",
                    name="workspace",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="presets",
                        to="accounts.workspace",
                    ),
                ),
                migrations.AlterField(
                    model_name="presetversion",
                    name="preset",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="accounts.preset",
                    ),
                ),
                migrations.AlterField(
                    model_name="workspace",
                    name="organization",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="workspaces",
                        to="accounts.organization",
                    ),
                ),
                migrations.AlterField(
                    model_name="workspacebudget",
                    name="workspace",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="budgets",
                        to="accounts.workspace",
                    ),
                ),
                migrations.AlterField(
                    model_name="workspacemember",
                    name="workspace",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="accounts.workspace",
                    ),
                ),
            ],
        ),
    ]
