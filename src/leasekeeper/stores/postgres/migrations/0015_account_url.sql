-- Schema 15. Where a person logs in to an account.
ALTER TABLE accounts ADD COLUMN url TEXT;
