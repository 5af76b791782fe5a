"""Adds the function that counts repeated requests for the rate limits."""

from django.db import migrations

# Parameters: the subjects of meters, and the most requests a minute and a day of each; 2^62 for no
# limit. Returns whether the request was counted, which it is in all meters or in none, and the
# meters as they are now.
COUNT_REPEAT = """
CREATE FUNCTION causeway_count_repeat_1(
    subjects uuid[], minute_limits bigint[], day_limits bigint[]
) RETURNS TABLE (is_counted boolean, meter billing_meter) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    this_minute CONSTANT timestamptz := date_trunc('minute', now());
    today CONSTANT timestamptz := date_trunc('day', this_minute, 'UTC');
    has_room boolean;
BEGIN
    PERFORM 1 FROM billing_meter AS m
    WHERE m.subject_id = any(subjects) ORDER BY m.subject_id FOR NO KEY UPDATE;
    SELECT coalesce(bool_and(
        CASE WHEN m.minute >= this_minute THEN m.requests - m.requests_before ELSE 0 END
            < w.minute_limit
        AND CASE
            WHEN m.minute >= today
                THEN m.requests - coalesce(m.requests_before_day, m.requests)
            ELSE 0
        END < w.day_limit
    ), FALSE)
    INTO has_room
    FROM unnest(subjects, minute_limits, day_limits) AS w (subject_id, minute_limit, day_limit)
    INNER JOIN billing_meter AS m ON w.subject_id = m.subject_id;
    IF has_room THEN
        UPDATE billing_meter AS m
        SET
            requests = m.requests + 1,
            last_used_at = now(),
            requests_before = CASE
                WHEN m.minute >= this_minute THEN m.requests_before ELSE m.requests
            END,
            requests_before_day = CASE
                WHEN m.minute >= today THEN coalesce(m.requests_before_day, m.requests)
                ELSE m.requests
            END,
            tokens_before = CASE
                WHEN m.minute >= this_minute THEN m.tokens_before ELSE m.tokens
            END,
            minute = greatest(m.minute, this_minute)
        WHERE m.subject_id = any(subjects);
    END IF;
    RETURN QUERY SELECT has_room, m FROM billing_meter AS m WHERE m.subject_id = any(subjects);
END
$$;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0002_token_verified"),
    ]

    operations = [
        migrations.RunSQL(COUNT_REPEAT, "DROP FUNCTION causeway_count_repeat_1"),
    ]
