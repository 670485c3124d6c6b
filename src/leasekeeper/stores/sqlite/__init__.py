"""The embedded store: one SQLite file on a local disk, several processes."""
