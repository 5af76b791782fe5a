"""Changes locked accounts and meters by their addresses, and keeps their versions together.

While any transaction stays open, PostgreSQL keeps every version of a row that is newer than it. The
accounts and meters of a busy organization get hundreds of versions a second, and both the search of
a row and the check of a unique index for a new entry read all of them.

The functions update rows that the statement which calls them has locked, and search for none. They
are volatile, so each command in them sees the rows as they are when it begins: a version that was
committed before the lock was granted is seen, and its address (``ctid``) stays the same while the
lock is held. In the statement itself the same join would lose such a row, because the statement sees
rows as they were when it began.

A worker of an earlier release may call a function while a later one is installed. A function whose
meaning changes therefore gets a new name with the next number.
"""

from django.db import migrations

# Parameters: the addresses of locked credits accounts, and the amounts to hold.
HOLD_ACCOUNTS = """
CREATE FUNCTION causeway_hold_accounts_1(tids tid[], amounts bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    changed bigint;
BEGIN
    UPDATE billing_account AS a
    SET pending_debits = a.pending_debits + w.amount
    FROM unnest(tids, amounts) AS w (tid, amount)
    WHERE a.ctid = w.tid;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM causeway_require_all_1(changed, tids);
END
$$;
"""

# Parameters: the addresses of locked meters, and what to add to each.
# Returns: the meters as they are now.
HOLD_METERS = """
CREATE FUNCTION causeway_hold_meters_1(
    tids tid[], costs bigint[], byoks bigint[], token_counts bigint[], request_counts bigint[]
) RETURNS SETOF billing_meter LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    this_minute CONSTANT timestamptz := date_trunc('minute', now());
    changed bigint;
BEGIN
    RETURN QUERY UPDATE billing_meter AS m
    SET
        held_cost = m.held_cost + w.cost,
        held_byok = m.held_byok + w.byok,
        held_tokens = m.held_tokens + w.tokens,
        requests = m.requests + w.requests,
        running = m.running + w.requests,
        last_used_at = now(),
        requests_before = CASE
            WHEN m.minute >= this_minute THEN m.requests_before ELSE m.requests
        END,
        requests_before_day = CASE
            WHEN m.minute >= date_trunc('day', this_minute, 'UTC')
                THEN coalesce(m.requests_before_day, m.requests)
            ELSE m.requests
        END,
        tokens_before = CASE
            WHEN m.minute >= this_minute THEN m.tokens_before ELSE m.tokens
        END,
        minute = greatest(m.minute, this_minute)
    FROM unnest(tids, costs, byoks, token_counts, request_counts)
        AS w (tid, cost, byok, tokens, requests)
    WHERE m.ctid = w.tid
    RETURNING m.*;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM causeway_require_all_1(changed, tids);
END
$$;
"""

# Parameters: the addresses of locked accounts; the holds that end, and what is debited and credited.
SETTLE_ACCOUNTS = """
CREATE FUNCTION causeway_settle_accounts_1(
    tids tid[], holds bigint[], debits bigint[], credits bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    changed bigint;
BEGIN
    UPDATE billing_account AS a
    SET
        pending_debits = a.pending_debits - w.held,
        posted_debits = a.posted_debits + w.debits,
        posted_credits = a.posted_credits + w.credits
    FROM unnest(tids, holds, debits, credits) AS w (tid, held, debits, credits)
    WHERE a.ctid = w.tid;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM causeway_require_all_1(changed, tids);
END
$$;
"""

# Parameters: the addresses of locked meters; the costs and tokens to count, and the holds that end.
# A transaction that began before midnight may come after one that began later: the day of a meter
# never goes back.
SETTLE_METERS = """
CREATE FUNCTION causeway_settle_meters_1(
    tids tid[], costs bigint[], byoks bigint[], holds bigint[], byok_holds bigint[],
    token_counts bigint[], held_token_counts bigint[], request_counts bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
    this_minute CONSTANT timestamptz := date_trunc('minute', now());
    changed bigint;
BEGIN
    UPDATE billing_meter AS m
    SET
        day = greatest(m.day, today),
        cost_daily = CASE WHEN m.day >= today THEN m.cost_daily ELSE 0 END + w.cost,
        cost_weekly = CASE
            WHEN m.day >= date_trunc('week', today)::date THEN m.cost_weekly ELSE 0
        END + w.cost,
        cost_monthly = CASE
            WHEN m.day >= date_trunc('month', today)::date THEN m.cost_monthly ELSE 0
        END + w.cost,
        byok_daily = CASE WHEN m.day >= today THEN m.byok_daily ELSE 0 END + w.byok,
        byok_weekly = CASE
            WHEN m.day >= date_trunc('week', today)::date THEN m.byok_weekly ELSE 0
        END + w.byok,
        byok_monthly = CASE
            WHEN m.day >= date_trunc('month', today)::date THEN m.byok_monthly ELSE 0
        END + w.byok,
        cost = m.cost + w.cost,
        byok = m.byok + w.byok,
        held_cost = m.held_cost - w.hold,
        held_byok = m.held_byok - w.byok_hold,
        tokens = m.tokens + w.tokens,
        held_tokens = greatest(m.held_tokens - w.held_tokens, 0),
        running = greatest(m.running - w.requests, 0),
        requests_before = CASE
            WHEN m.minute >= this_minute THEN m.requests_before ELSE m.requests
        END,
        requests_before_day = CASE
            WHEN m.minute >= date_trunc('day', this_minute, 'UTC')
                THEN coalesce(m.requests_before_day, m.requests)
            ELSE m.requests
        END,
        tokens_before = CASE
            WHEN m.minute >= this_minute THEN m.tokens_before ELSE m.tokens
        END,
        minute = greatest(m.minute, this_minute)
    FROM unnest(
        tids, costs, byoks, holds, byok_holds, token_counts, held_token_counts, request_counts
    ) AS w (tid, cost, byok, hold, byok_hold, tokens, held_tokens, requests)
    WHERE m.ctid = w.tid;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM causeway_require_all_1(changed, tids);
END
$$;
"""

# Refuses a change that did not find all its rows, because they were not locked.
REQUIRE_ALL = """
CREATE FUNCTION causeway_require_all_1(changed bigint, tids tid[])
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF changed <> coalesce(cardinality(tids), 0) THEN
        RAISE EXCEPTION '% of % rows were changed, because the others were not locked',
            changed, coalesce(cardinality(tids), 0)
            USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;
"""

# A new version of a row finds room in its page while the page has free space. Otherwise it goes to
# another page, and every unique index gets one more entry. A page takes rows from elsewhere only up
# to this share, so nine of ten new versions stay in their page.
ROOM = """
ALTER TABLE billing_account SET (fillfactor = 10);
ALTER TABLE billing_meter SET (fillfactor = 10);
"""
LESS_ROOM = """
ALTER TABLE billing_account RESET (fillfactor);
ALTER TABLE billing_meter RESET (fillfactor);
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0006_room_for_updates")]

    operations = [
        migrations.RunSQL(REQUIRE_ALL, "DROP FUNCTION causeway_require_all_1"),
        migrations.RunSQL(HOLD_ACCOUNTS, "DROP FUNCTION causeway_hold_accounts_1"),
        migrations.RunSQL(HOLD_METERS, "DROP FUNCTION causeway_hold_meters_1"),
        migrations.RunSQL(SETTLE_ACCOUNTS, "DROP FUNCTION causeway_settle_accounts_1"),
        migrations.RunSQL(SETTLE_METERS, "DROP FUNCTION causeway_settle_meters_1"),
        migrations.RunSQL(ROOM, LESS_ROOM),
    ]
