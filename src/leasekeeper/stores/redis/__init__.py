"""The store on Redis: records in hashes, indexes in sorted sets, one Lua script for every commit."""
