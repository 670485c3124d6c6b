-- Schema 25. The machine that has a profile's newest directory, and the machine of each worker and run. A claim reads
-- the lanes of no machine and those of its own, each in their order.
ALTER TABLE lanes ADD COLUMN home TEXT NOT NULL DEFAULT '';
ALTER TABLE retired_lanes ADD COLUMN home TEXT NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN machine TEXT;
ALTER TABLE runs ADD COLUMN machine TEXT;
DROP INDEX lanes_ready;
CREATE INDEX lanes_ready ON lanes (head_pool, head_task, home, head_priority DESC, waiting_at, profile_id)
    WHERE blocked_by IS NULL AND head_job_id IS NOT NULL;
