-- Schedules: the lock that lets only one process fire at a time, and writes of a whole batch at a time.

-- name: lock_fleet_free
SELECT only_row FROM fleet_lock FOR UPDATE SKIP LOCKED;

-- name: put_schedules
INSERT INTO schedules (
    schedule_id, cron, timezone, jitter_seconds, profiles, on_overlap, catch_up, job, since
) SELECT
    schedule_id, cron, timezone, jitter_seconds, profiles, on_overlap, catch_up, job, since
FROM json_populate_recordset(NULL::schedules, :rows)
ON CONFLICT (schedule_id) DO UPDATE SET
    cron = excluded.cron, timezone = excluded.timezone, jitter_seconds = excluded.jitter_seconds,
    profiles = excluded.profiles, on_overlap = excluded.on_overlap, catch_up = excluded.catch_up,
    job = excluded.job, since = excluded.since;

-- name: put_schedule_states
INSERT INTO schedule_states (
    schedule_id, last_at, next_at, since, fired_at, firing_at, firing_after, run_at, run_after, run_by, paused, pause_note,
    version
) SELECT
    schedule_id, last_at, next_at, since, fired_at, firing_at, firing_after, run_at, run_after, run_by, paused, pause_note,
    version
FROM json_populate_recordset(NULL::schedule_states, :rows)
ON CONFLICT (schedule_id) DO UPDATE SET
    last_at = excluded.last_at, next_at = excluded.next_at, since = excluded.since, fired_at = excluded.fired_at,
    firing_at = excluded.firing_at, firing_after = excluded.firing_after, run_at = excluded.run_at, run_after = excluded.run_after,
    run_by = excluded.run_by, paused = excluded.paused, pause_note = excluded.pause_note, version = excluded.version;

-- name: put_schedule_jobs
INSERT INTO schedule_jobs (place, job_id)
SELECT place, job_id FROM json_populate_recordset(NULL::schedule_jobs, :rows)
ON CONFLICT (place) DO UPDATE SET job_id = excluded.job_id;

-- name: delete_schedule
DELETE FROM schedules t USING json_to_recordset(:rows) AS r (id text) WHERE t.schedule_id = r.id;

-- name: delete_schedule_state
DELETE FROM schedule_states t USING json_to_recordset(:rows) AS r (id text)
WHERE t.schedule_id = r.id AND NOT t.paused;

-- name: stop_schedule_state
UPDATE schedule_states t SET firing_at = NULL, firing_after = '', run_at = NULL, run_after = '', run_by = ''
FROM json_to_recordset(:rows) AS r (id text)
WHERE t.schedule_id = r.id;

-- name: delete_schedule_jobs
DELETE FROM schedule_jobs t USING json_to_recordset(:rows) AS r (id text)
WHERE t.place >= r.id || ':' AND t.place < r.id || ';';
