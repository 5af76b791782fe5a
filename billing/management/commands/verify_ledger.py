from __future__ import annotations

from typing import Any, Final

from billing import verification as audit
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse

# What a generation paid and holds, by its transfers; each statement sees one moment.
GENERATIONS: Final = """
WITH moved AS (
    SELECT reference,
           sum(coalesce(posted_nano, 0)) AS paid,
           sum(CASE status WHEN 'pending' THEN amount_nano ELSE 0 END) AS held
    FROM billing_transfer WHERE kind IN ('usage', 'excess', 'write_off') GROUP BY reference
)
SELECT CASE
    WHEN g.id IS NULL THEN format('generation %s: it has transfers and does not exist', m.reference)
    WHEN g.status = 'pending' THEN format(
        'generation %s: holds %s, its transfers hold %s and paid %s', g.id, g.hold_nano,
        coalesce(m.held, 0), coalesce(m.paid, 0))
    ELSE format(
        'generation %s: ended at a cost of %s, its transfers paid %s and hold %s', g.id,
        g.cost_nano, coalesce(m.paid, 0), coalesce(m.held, 0))
    END
FROM inference_generation g FULL JOIN moved m ON m.reference = g.id
WHERE g.id IS NULL
   OR coalesce(m.paid, 0) <> CASE g.status WHEN 'pending' THEN 0 ELSE g.cost_nano END
   OR coalesce(m.held, 0) <> CASE g.status WHEN 'pending' THEN g.hold_nano ELSE 0 END
"""

METERS: Final = """
WITH used AS (
    SELECT subject_id,
           sum(CASE status WHEN 'pending' THEN 0 ELSE cost_nano END) AS cost,
           sum(CASE WHEN status <> 'pending' AND is_byok THEN upstream_cost_nano ELSE 0 END)
               AS byok,
           sum(CASE status WHEN 'pending' THEN hold_nano ELSE 0 END) AS held_cost,
           sum(CASE status WHEN 'pending' THEN upstream_hold_nano ELSE 0 END) AS held_byok
    FROM inference_generation
    CROSS JOIN LATERAL (VALUES (api_key_id), (workspace_id), (member_id)) AS s(subject_id)
    WHERE subject_id IS NOT NULL GROUP BY subject_id
)
SELECT format(
    'meter %s: cost %s, own credentials %s, held %s and %s; its generations make %s, %s, %s and %s',
    m.subject_id, m.cost, m.byok, m.held_cost, m.held_byok, coalesce(u.cost, 0),
    coalesce(u.byok, 0), coalesce(u.held_cost, 0), coalesce(u.held_byok, 0))
FROM billing_meter m LEFT JOIN used u ON u.subject_id = m.subject_id
WHERE (m.cost, m.byok, m.held_cost, m.held_byok)
      <> (coalesce(u.cost, 0), coalesce(u.byok, 0), coalesce(u.held_cost, 0),
          coalesce(u.held_byok, 0))
ORDER BY m.subject_id
"""


class Command(JSONCommand):
    help = "Recomputes every balance, hold and meter from the transfers; exit 1 if any differs."

    def handle(self, *args: Any, **options: Any) -> None:
        found = [
            *audit.find_differences(),
            *audit.run_check(GENERATIONS),
            *audit.run_check(METERS),
        ]
        if options["json"]:
            self.report({"differences": found}, as_json=True)
        else:
            for text in found:
                self.stdout.write(text)
        if found:
            refuse(f"{len(found)} differences.")
        self.note("The ledger is in order.")
