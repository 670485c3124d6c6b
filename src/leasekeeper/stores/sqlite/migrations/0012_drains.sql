-- Schema 12. Where a person sends a leased profile when its lease ends, and why: not only out of rotation.
ALTER TABLE lanes RENAME COLUMN drain TO drained;
ALTER TABLE lanes ADD COLUMN drain TEXT;
ALTER TABLE lanes ADD COLUMN drain_reason TEXT NOT NULL DEFAULT '';
UPDATE lanes SET drain = 'disabled' WHERE drained;
ALTER TABLE lanes DROP COLUMN drained;
