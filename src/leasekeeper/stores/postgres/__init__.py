"""The PostgreSQL store, for many machines. Needs psycopg, the extra `leasekeeper[postgres]`.

Importing it raises InputError, which names the extra, if psycopg is missing.
"""

from leasekeeper.errors import InputError

try:
    import psycopg as psycopg
except ImportError as error:
    raise InputError(
        "PostgreSQL stores need psycopg, which is not installed here or lacks its libpq; "
        "install the extra leasekeeper[postgres]"
    ) from error
