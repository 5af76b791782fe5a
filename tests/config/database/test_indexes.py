"""No index repeats the beginning of another one: each costs every write of its table."""

from __future__ import annotations

from typing import Final

from django.db import connection

# An index is redundant if another one of its table begins with the same columns, compared and
# sorted in the same way, and has the rows and the further columns that it has. A unique index and
# that of a constraint state a rule. Indexes of partitions belong to those of their tables.
_PAIRS: Final = """
WITH indexes AS (
    SELECT
        i.indexrelid, i.indrelid, i.indisunique, i.indisexclusion,
        coalesce(pg_get_expr(i.indpred, i.indrelid), '') AS predicate,
        array(
            SELECT ROW(
                pg_get_indexdef(i.indexrelid, n, true),
                i.indclass[n - 1], i.indcollation[n - 1], i.indoption[n - 1]
            )::text
            FROM generate_series(1, i.indnkeyatts) AS n
        ) AS keys,
        array(
            SELECT pg_get_indexdef(i.indexrelid, n, true)
            FROM generate_series(1, i.indnatts) AS n
        ) AS columns
    FROM pg_index AS i
    INNER JOIN pg_class AS c ON c.oid = i.indexrelid
    INNER JOIN pg_am AS a ON a.oid = c.relam
    INNER JOIN pg_namespace AS s ON s.oid = c.relnamespace
    WHERE s.nspname = current_schema() AND a.amname = 'btree' AND NOT c.relispartition
)
SELECT short.indexrelid::regclass::text, long.indexrelid::regclass::text
FROM indexes AS short
INNER JOIN indexes AS long
    ON long.indrelid = short.indrelid AND long.indexrelid <> short.indexrelid
WHERE
    NOT short.indisunique AND NOT short.indisexclusion
    AND long.predicate = short.predicate
    AND long.keys[:cardinality(short.keys)] = short.keys
    AND long.columns @> short.columns
    AND (
        cardinality(long.keys) > cardinality(short.keys) OR long.indisunique
        OR long.indexrelid > short.indexrelid
    )
ORDER BY 1, 2
"""
# Pairs that stay, each with its reason.
KEPT: Final = dict.fromkeys(
    (
        "auth_group_permissions_group_id_b120cbf9", "auth_permission_content_type_id_2f476e4b",
        "auth_user_groups_user_id_6a12ed8b", "auth_user_user_permissions_user_id_a95ead1b",
    ),
    "Django's own migrations make and expect it, on tables of a few rows",
)  # fmt: skip
# Foreign keys without an index that begins with their column, each with its reason.
UNSERVED: Final = {
    "accounts_apikey.creator_id": "an operator alone deletes members, and every key would pay",
    "accounts_preset.designated_version_id": "a version is deleted with its preset alone",
    "endpoints_privateendpoint.private_provider_id": "a provider is marked as deleted and stays",
    "endpoints_privateprovider.organization_id": "no organization is deleted; it has few of them",
    "endpoints_validationslot.endpoint_id": "the table has a few rows, and no endpoint is deleted",
}
_FOREIGN_KEYS: Final = r"""
SELECT t.relname || '.' || a.attname
FROM pg_constraint AS c
INNER JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
INNER JOIN pg_class AS t ON t.oid = c.conrelid
INNER JOIN pg_namespace AS s ON s.oid = c.connamespace
WHERE
    c.contype = 'f' AND s.nspname = current_schema() AND NOT t.relispartition
    AND NOT EXISTS (
        SELECT FROM pg_index AS i
        WHERE
            i.indrelid = c.conrelid AND i.indkey[0] = c.conkey[1]
            AND (
                i.indpred IS NULL
                OR pg_get_expr(i.indpred, i.indrelid) ~ 'IS NOT NULL|NOT [(]\w+ IS NULL[)]'
            )
    )
ORDER BY 1
"""


def test_no_index_repeats_the_beginning_of_another_one(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_PAIRS)
        pairs = cursor.fetchall()
    assert [(short, longer) for short, longer in pairs if short not in KEPT] == []
    assert {short for short, _ in pairs} == set(KEPT)


def test_an_index_serves_every_foreign_key(db: None) -> None:
    """Deleting a parent looks for its children by that column."""
    with connection.cursor() as cursor:
        cursor.execute(_FOREIGN_KEYS)
        assert [name for (name,) in cursor.fetchall()] == sorted(UNSERVED)
