"""A migrated PostgreSQL store that is emptied again and again.

TRUNCATE makes new files for every table and index, which takes longer than most tests. Deleting what a test left, by a
function whose plans are kept on a connection that stays, takes about a millisecond.
"""

import psycopg
from psycopg import sql

from leasekeeper.stores.postgres.schema import SCHEMA

KEPT = ("schema_version", "fleet_lock")
# A table that was larger is truncated: deleted rows stay in its file for a while, and later tests would read past them.
MAX_DELETED_BYTES = 500_000
_EACH = """
    IF pg_relation_size({name}) > {size} THEN TRUNCATE {table}; ELSE DELETE FROM {table}; END IF;
"""


class EmptiedPostgres:
    """The store at a URL, and a connection to empty it through."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)
        found = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> ALL(%s)"
        tables = [sql.Identifier(SCHEMA, name) for (name,) in self._connection.execute(found, (SCHEMA, list(KEPT)))]
        numbers = "SELECT format('%%I.%%I', schemaname, sequencename) FROM pg_sequences WHERE schemaname = %s"
        steps = [sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE;").format(sql.SQL(", ").join(tables))]
        for table in tables:
            name, size = sql.Literal(table.as_string()), sql.Literal(MAX_DELETED_BYTES)
            steps.append(sql.SQL(_EACH).format(name=name, size=size, table=table))
        for (sequence,) in self._connection.execute(numbers, (SCHEMA,)):
            steps.append(sql.SQL("PERFORM setval({}, 1, false);").format(sql.Literal(sequence)))
        steps.append(sql.SQL("UPDATE {} SET expiry_resumes_at = 0;").format(sql.Identifier(SCHEMA, "fleet_lock")))
        function = "CREATE FUNCTION pg_temp.empty_store() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {} END $$"
        self._connection.execute(sql.SQL(function).format(sql.SQL("").join(steps)))

    def emptied(self) -> str:
        """The URL of the store, as new as after its migration. Its configuration's revision goes on: who has the store
        open remembers the configuration by that."""
        self._connection.execute("SELECT pg_temp.empty_store()")
        return self.url

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
