"""The PostgreSQL store, for many machines. Needs psycopg, the extra `leasekeeper[postgres]`.

Importing it raises InputError with the command to install psycopg if that is missing.
"""

from leasekeeper.errors import InputError

try:
    import psycopg as psycopg
except ImportError as error:
    raise InputError(
        "PostgreSQL stores need psycopg, which is not installed here or lacks its libpq; "
        "run: pip install 'psycopg[binary]' (the extra leasekeeper[postgres])"
    ) from error
