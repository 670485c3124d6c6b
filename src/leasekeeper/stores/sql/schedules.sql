-- Reads of schedules that are the same in every dialect, and the pieces of their lists (see finds.sql).

-- name: all_schedules
SELECT * FROM schedules;

-- name: due_schedules
SELECT s.*,
       t.schedule_id AS t_schedule_id, t.last_at AS t_last_at, t.next_at AS t_next_at, t.since AS t_since,
       t.fired_at AS t_fired_at, t.firing_at AS t_firing_at, t.firing_after AS t_firing_after,
       t.run_at AS t_run_at, t.run_after AS t_run_after, t.run_by AS t_run_by, t.paused AS t_paused, t.pause_note AS t_pause_note, t.version AS t_version
FROM schedules s LEFT JOIN schedule_states t ON t.schedule_id = s.schedule_id
WHERE t.schedule_id IS NULL OR t.run_at IS NOT NULL
   OR (NOT t.paused AND (t.firing_at IS NOT NULL OR t.next_at IS NULL OR t.next_at <= :now OR t.since IS NULL
                         OR t.since <> s.since OR t.last_at > :now))
ORDER BY coalesce(t.next_at, 0), s.schedule_id
LIMIT :limit;

-- name: one_schedule
SELECT s.*,
       t.schedule_id AS t_schedule_id, t.last_at AS t_last_at, t.next_at AS t_next_at, t.since AS t_since,
       t.fired_at AS t_fired_at, t.firing_at AS t_firing_at, t.firing_after AS t_firing_after,
       t.run_at AS t_run_at, t.run_after AS t_run_after, t.run_by AS t_run_by, t.paused AS t_paused, t.pause_note AS t_pause_note, t.version AS t_version
FROM schedules s LEFT JOIN schedule_states t ON t.schedule_id = s.schedule_id
WHERE s.schedule_id = :schedule_id;

-- name: profiles_selected
SELECT profile_id, labels, tier FROM profiles
WHERE profile_id > :after
  AND (CAST(:account_id AS text) IS NULL OR account_id = CAST(:account_id AS text))
  AND (CAST(:pool AS text) IS NULL OR pool = CAST(:pool AS text))
ORDER BY profile_id LIMIT :limit;

-- name: last_jobs_of_schedules
SELECT k.place, j.state FROM schedule_jobs k JOIN jobs j ON j.job_id = k.job_id WHERE k.place IN :places[];

-- name: find_job__schedule
-- The keys of a schedule's jobs have the same beginning (core.schedules.job_key).
AND t.idempotency_key >= :schedule_from AND t.idempotency_key < :schedule_to

-- name: find_schedule
SELECT * FROM schedules t WHERE TRUE

-- name: find_schedule__after
AND t.schedule_id > :after

-- name: find_schedule__order
ORDER BY t.schedule_id LIMIT :limit

-- name: find_schedule__schedule_id
AND t.schedule_id = :schedule_id

-- name: find_schedule_state
SELECT * FROM (
    SELECT s.schedule_id, coalesce(t.last_at, s.since) AS last_at, t.next_at, t.since, t.fired_at, t.firing_at,
           coalesce(t.firing_after, '') AS firing_after, t.run_at, coalesce(t.run_after, '') AS run_after,
           coalesce(t.run_by, '') AS run_by, coalesce(t.paused, FALSE) AS paused,
           coalesce(t.pause_note, '') AS pause_note, coalesce(t.version, 1) AS version
    FROM schedules s LEFT JOIN schedule_states t ON t.schedule_id = s.schedule_id
) t WHERE TRUE

-- name: find_schedule_state__after
AND t.schedule_id > :after

-- name: find_schedule_state__order
ORDER BY t.schedule_id LIMIT :limit

-- name: find_schedule_state__schedule_id
AND t.schedule_id = :schedule_id

-- name: find_schedule_state__paused
AND t.paused = :paused
