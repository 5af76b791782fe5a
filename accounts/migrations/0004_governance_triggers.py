"""Lets running processes notice changed settings, budgets and guardrails of an organization."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION causeway_settings_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.routing_version := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END
$$;
CREATE TRIGGER settings_changed BEFORE UPDATE ON accounts_organization FOR EACH ROW
    WHEN ((OLD.allowed_providers, OLD.ignored_providers, OLD.requires_zdr, OLD.forbids_training)
          IS DISTINCT FROM
          (NEW.allowed_providers, NEW.ignored_providers, NEW.requires_zdr, NEW.forbids_training))
    EXECUTE FUNCTION causeway_settings_changed();
CREATE CONSTRAINT TRIGGER organization_changed AFTER INSERT OR UPDATE OR DELETE ON accounts_guardrail
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_organization_changed();
CREATE CONSTRAINT TRIGGER organization_changed AFTER UPDATE ON accounts_workspace
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_organization_changed();
CREATE FUNCTION causeway_budget_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE accounts_organization o SET routing_version = pg_current_xact_id()::text::bigint
    FROM accounts_workspace w
    WHERE w.id = COALESCE(NEW.workspace_id, OLD.workspace_id) AND o.id = w.organization_id
      AND o.routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER budget_changed
    AFTER INSERT OR UPDATE OR DELETE ON accounts_workspacebudget
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_budget_changed();
"""

BACKWARD = """
DROP TRIGGER budget_changed ON accounts_workspacebudget;
DROP FUNCTION causeway_budget_changed();
DROP TRIGGER organization_changed ON accounts_workspace;
DROP TRIGGER organization_changed ON accounts_guardrail;
DROP TRIGGER settings_changed ON accounts_organization;
DROP FUNCTION causeway_settings_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_governance")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
