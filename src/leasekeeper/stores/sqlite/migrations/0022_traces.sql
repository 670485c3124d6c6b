-- Schema 22. The trace that a job is part of, as W3C's traceparent, and with it its webhooks.
ALTER TABLE jobs ADD COLUMN traceparent TEXT;
ALTER TABLE deliveries ADD COLUMN traceparent TEXT;
