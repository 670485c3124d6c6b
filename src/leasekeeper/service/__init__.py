"""The service: what stands between callers with a token and the store. Knows no command line."""
