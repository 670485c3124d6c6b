-- Schema 12. Where a person sends a leased profile when its lease ends, and why: not only out of rotation.
ALTER TABLE lanes ALTER COLUMN drain DROP NOT NULL;
ALTER TABLE lanes ALTER COLUMN drain TYPE text USING CASE WHEN drain THEN 'disabled' END;
ALTER TABLE lanes ADD COLUMN drain_reason text NOT NULL DEFAULT '';
