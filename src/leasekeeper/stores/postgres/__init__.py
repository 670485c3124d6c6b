"""The fleet store: PostgreSQL, many machines. Needs the extra `leasekeeper[postgres]`."""
