-- Reads that lock rows in other dialects: here a writer has locked the whole database, so they only read. Open runs are
-- read by the partial index that has only these: else SQLite would scan all runs of the profile.

-- name: lock_lanes
SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id;

-- name: lock_lanes_free
SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id;

-- The first few lanes of each task and each home, by the index: many lanes of other machines cost nothing.

-- name: lock_ready
SELECT l.*, (SELECT max_leases FROM limits WHERE limits.pool = :pool) AS pool_limit,
       (SELECT max(coalesce(p.until, 9223372036854775807)) FROM pauses p
        WHERE p.pause_id IN ('all', 'pool:' || CAST(:pool AS TEXT), 'worker:' || CAST(:worker AS TEXT))) AS paused_until
FROM json_each(:tasks) t CROSS JOIN json_each(:homes) h CROSS JOIN lanes l
WHERE l.profile_id IN (
    SELECT r.profile_id FROM lanes r
    WHERE r.head_pool = :pool AND r.head_task = t.value AND r.reserved_for = h.value
      AND r.blocked_by IS NULL AND r.head_job_id IS NOT NULL
      AND (r.engine IS NULL OR CAST(:engine AS INTEGER) IS NULL OR r.engine <= CAST(:engine AS INTEGER))
    ORDER BY r.head_priority DESC, r.waiting_at, r.profile_id
    LIMIT :limit
)
ORDER BY l.head_priority DESC, l.waiting_at, l.profile_id
LIMIT :limit;

-- name: heads
SELECT j.*, n.job_id AS next_job_id, n.pool AS next_pool, n.task AS next_task, n.priority AS next_priority,
       n.mode AS next_mode,
       EXISTS (
           SELECT 1 FROM jobs q
           WHERE q.profile_id = l.profile_id AND q.state = 'queued' AND q.on_conflict <> 'wait' AND NOT q.approved
             AND q.seq <> j.seq
       ) AS others_on_conflict
FROM lanes l
CROSS JOIN jobs j ON j.seq = (
    SELECT q.seq FROM jobs q
    WHERE q.profile_id = l.profile_id AND q.state = 'queued'
    ORDER BY q.priority DESC, q.seq
    LIMIT 1
)
LEFT JOIN jobs n ON n.seq = (
    SELECT q.seq FROM jobs q
    WHERE q.profile_id = l.profile_id AND q.state = 'queued'
    ORDER BY q.priority DESC, q.seq
    LIMIT 1 OFFSET 1
)
WHERE l.profile_id IN :ids[];

-- name: open_runs
SELECT * FROM runs INDEXED BY runs_open
WHERE profile_id IN :ids[] AND open
ORDER BY profile_id, token;

-- name: moving_runs
SELECT r.lease_id, r.run_id, r.heartbeat_at, r.expires_at, r.last_safe_step, r.last_safe_at, r.last_url,
       r.open_section, r.section_at, r.section_idempotent, r.left_section, r.asks_person, r.person_answer, r.status,
       r.unresolved, r.ended_at, j.version AS job_version
FROM runs r INDEXED BY runs_open
LEFT JOIN jobs j ON j.job_id = r.job_id AND j.run_id = r.run_id AND j.state = 'running'
WHERE r.profile_id IN :ids[] AND r.open
ORDER BY r.profile_id, r.token;

-- name: running_jobs
SELECT j.* FROM runs r INDEXED BY runs_open
JOIN jobs j ON j.job_id = r.job_id AND j.run_id = r.run_id AND j.state = 'running'
WHERE r.profile_id IN :ids[] AND r.open;

-- name: lock_pool
SELECT max_leases FROM limits WHERE pool = :pool;

-- name: lock_accounts
SELECT * FROM accounts WHERE account_id IN :ids[] ORDER BY account_id;

-- name: lock_accounts_free
SELECT account_id, version FROM accounts WHERE account_id IN :ids[] ORDER BY account_id;

-- name: lock_deliveries
SELECT * FROM deliveries WHERE delivery_id IN :ids[] ORDER BY delivery_id;

-- name: lock_deliveries_free
SELECT * FROM deliveries WHERE delivery_id IN :ids[] ORDER BY delivery_id;

-- The first few due messages of each host. Hosts with pending messages are found one after the other by the index.

-- name: due_deliveries
WITH RECURSIVE hosts (host, place) AS (
    SELECT min(host), 1 FROM deliveries WHERE ended_at IS NULL AND host > :after
    UNION ALL
    SELECT (SELECT min(q.host) FROM deliveries q WHERE q.ended_at IS NULL AND q.host > hosts.host), place + 1
    FROM hosts WHERE hosts.host IS NOT NULL AND place < :hosts
)
SELECT h.host, d.delivery_id, d.due_at FROM hosts h
LEFT JOIN deliveries d ON d.seq IN (
    SELECT q.seq FROM deliveries q
    WHERE q.ended_at IS NULL AND q.host = h.host AND q.due_at <= :now
      AND CASE WHEN q.endpoint_id IS NULL THEN CAST(:callbacks AS integer) ELSE CAST(:endpoints AS integer) END = 1
    ORDER BY q.due_at, q.seq
    LIMIT :each
)
WHERE h.host IS NOT NULL;

-- name: lock_fleet
SELECT 1 AS locked;

-- name: lock_all_lanes
SELECT 1 AS locked;

-- name: lock_calls
SELECT :key;

-- name: lock_tokens
SELECT * FROM tokens WHERE token_id IN :ids[] ORDER BY token_id;

-- name: lock_secrets
SELECT * FROM secrets WHERE name IN :names[] ORDER BY name;

-- name: find_profile__label
AND EXISTS (SELECT 1 FROM json_each(t.labels) e WHERE e.key = :label_name AND e.value = :label_value);

-- name: find_lane__label
AND t.profile_id IN (
    SELECT p.profile_id FROM profiles p, json_each(p.labels) e WHERE e.key = :label_name AND e.value = :label_value
);

-- name: lock_endpoints
SELECT * FROM endpoints WHERE endpoint_id IN :ids[] ORDER BY endpoint_id;

-- name: lock_silent_workers
SELECT * FROM workers WHERE stopped_at IS NULL AND silent_since IS NULL AND heartbeat_at <= :since
ORDER BY incarnation LIMIT :limit;
