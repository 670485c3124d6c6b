"""The store on Redis: records in hashes, indexes in sorted sets, one script for each commit."""
