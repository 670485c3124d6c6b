-- Schema 29. What a run waits for a person to do; profiles whose runs are recorded.
ALTER TABLE runs ADD COLUMN asks_person text;
ALTER TABLE profiles ADD COLUMN record boolean NOT NULL DEFAULT FALSE;
