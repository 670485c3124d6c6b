-- Schema 31. `kept_for` said nothing of what the lane is reserved for: the machine whose workers alone get its jobs.
ALTER TABLE lanes RENAME COLUMN kept_for TO reserved_for;
DROP INDEX lanes_kept;
CREATE INDEX lanes_reserved ON lanes (waiting_at, profile_id)
    WHERE saved AND reserved_for <> '*' AND blocked_by IS NULL AND head_job_id IS NOT NULL;
DROP INDEX jobs_impatient;
CREATE INDEX jobs_on_conflict ON jobs (profile_id, priority DESC, seq)
    WHERE state = 'queued' AND on_conflict <> 'wait' AND NOT approved;
