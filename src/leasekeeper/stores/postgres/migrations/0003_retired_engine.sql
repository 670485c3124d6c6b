-- Schema 3. Which browser opened a profile last is known, too, when the profile was removed and is declared again.
ALTER TABLE retired_lanes ADD COLUMN engine BIGINT;
