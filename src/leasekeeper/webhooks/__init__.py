"""Webhooks on the wire: the format and signature of a message, and the HTTP request. Knows no store."""
