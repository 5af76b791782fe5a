"""Keeps deposits as the chain told them: judged once, and resolved once by an operator."""

from django.db import migrations

DEPOSITS = """
CREATE FUNCTION causeway_deposit_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE'
       AND (NEW.id, NEW.created_at, NEW.chain_id, NEW.tx_hash, NEW.ordinal, NEW.block_number,
            NEW.block_hash, NEW.mined_at, NEW.token, NEW.token_symbol, NEW.token_decimals,
            NEW.sender, NEW.recipient, NEW.units, NEW.amount_nano)
           IS NOT DISTINCT FROM
           (OLD.id, OLD.created_at, OLD.chain_id, OLD.tx_hash, OLD.ordinal, OLD.block_number,
            OLD.block_hash, OLD.mined_at, OLD.token, OLD.token_symbol, OLD.token_decimals,
            OLD.sender, OLD.recipient, OLD.units, OLD.amount_nano)
    THEN
        IF OLD.status = 'received'
           AND NEW.status IN ('credited', 'unmatched', 'under', 'over', 'late')
           AND NEW.finding = NEW.status
           AND (NEW.resolved_at, NEW.resolved_by, NEW.note)
               IS NOT DISTINCT FROM (OLD.resolved_at, OLD.resolved_by, OLD.note)
        THEN
            RETURN NEW;
        END IF;
        IF OLD.status IN ('unmatched', 'under', 'over', 'late')
           AND NEW.status IN ('credited', 'dismissed') AND NEW.resolved_at IS NOT NULL
           AND (NEW.finding, NEW.top_up_id) IS NOT DISTINCT FROM (OLD.finding, OLD.top_up_id)
        THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'a deposit is never changed, but judged once and resolved once'
        USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER kept BEFORE UPDATE OR DELETE ON billing_deposit
    FOR EACH ROW EXECUTE FUNCTION causeway_deposit_kept();
"""

NO_DEPOSITS = """
DROP TRIGGER kept ON billing_deposit;
DROP FUNCTION causeway_deposit_kept();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_top_ups")]

    operations = [migrations.RunSQL(DEPOSITS, NO_DEPOSITS)]
