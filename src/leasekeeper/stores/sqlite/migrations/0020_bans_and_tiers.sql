-- Schema 20. Whether an account or a profile is banned, and the tier of a profile: shown and filtered, never a rule.
ALTER TABLE accounts ADD COLUMN ban_status TEXT NOT NULL DEFAULT 'none';
ALTER TABLE retired_accounts ADD COLUMN ban_status TEXT NOT NULL DEFAULT 'none';
ALTER TABLE profiles ADD COLUMN tier TEXT;
ALTER TABLE lanes ADD COLUMN tier TEXT;
ALTER TABLE lanes ADD COLUMN ban_status TEXT NOT NULL DEFAULT 'none';
ALTER TABLE retired_lanes ADD COLUMN ban_status TEXT NOT NULL DEFAULT 'none';
