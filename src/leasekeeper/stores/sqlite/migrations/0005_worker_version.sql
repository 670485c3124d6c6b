-- Schema 5. A worker says which Leasekeeper it runs, so that people see when a fleet runs several.
ALTER TABLE workers ADD COLUMN version TEXT;
