"""Webhooks on the wire: how a message is written and signed, and how it reaches its receiver. Knows no store."""
