"""The fleet store: PostgreSQL, many machines. Needs the extra `leasehold[postgres]`."""
