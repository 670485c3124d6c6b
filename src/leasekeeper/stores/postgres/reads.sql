-- Reads that take locks. A statement that locks rows does not read other rows that the lock protects: it would see them
-- as they were before the lock. Locks that wait are taken in the order of ids; a claim never waits (SKIP LOCKED).

-- name: lock_lanes
SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id FOR NO KEY UPDATE;

-- name: lock_lanes_free
SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id FOR NO KEY UPDATE SKIP LOCKED;

-- lock_ready stores the ids of the locked lanes in a setting of the transaction, so that further reads of these lanes
-- fit into the same round trip: `heads=ready` and `configs=ready` take their ids from this setting.

-- The first few lanes of each task and each home, by the index: many lanes of other machines cost nothing. On a table
-- without statistics (just filled) the planner must have no other choice than this: they are an array, which is computed
-- once and not for each lane, and what is checked again after the lock is a CASE, which no index is tried for.

-- name: lock_ready
WITH locked AS (
    SELECT l.*, (SELECT max_leases FROM limits WHERE limits.pool = :pool) AS pool_limit,
       (SELECT max(coalesce(p.until, 9223372036854775807)) FROM pauses p
        WHERE p.pause_id IN ('all', 'pool:' || CAST(:pool AS text), 'worker:' || CAST(:worker AS text))) AS paused_until
    FROM lanes l
    WHERE l.profile_id = ANY(ARRAY(
        SELECT best.profile_id
        FROM unnest(CAST(:tasks AS text[])) AS offered (task)
        CROSS JOIN unnest(CAST(:homes AS text[])) AS here (home)
        CROSS JOIN LATERAL (
            SELECT r.profile_id FROM lanes r
            WHERE r.head_pool = :pool AND r.head_task = offered.task AND r.reserved_for = here.home
              AND r.blocked_by IS NULL AND r.head_job_id IS NOT NULL
              AND (r.engine IS NULL OR CAST(:engine AS bigint) IS NULL OR r.engine <= CAST(:engine AS bigint))
            ORDER BY r.head_priority DESC, r.waiting_at, r.profile_id
            LIMIT :window
        ) best
    ))
      AND CASE WHEN l.head_pool = :pool AND l.head_task = ANY(:tasks) AND l.reserved_for = ANY(CAST(:homes AS text[]))
                AND l.blocked_by IS NULL AND l.head_job_id IS NOT NULL THEN TRUE ELSE FALSE END
    ORDER BY l.head_priority DESC, l.waiting_at, l.profile_id
    LIMIT :limit
    FOR NO KEY UPDATE OF l SKIP LOCKED
)
SELECT locked.*,
       (SELECT set_config('leasekeeper.ready', CAST(array_agg(profile_id) AS text), TRUE) FROM locked) AS ready
FROM locked;

-- name: heads
SELECT j.*, n.job_id AS next_job_id, n.pool AS next_pool, n.task AS next_task, n.priority AS next_priority,
       n.mode AS next_mode,
       EXISTS (
           SELECT 1 FROM jobs q
           WHERE q.profile_id = l.profile_id AND q.state = 'queued' AND q.on_conflict <> 'wait' AND NOT q.approved
             AND q.seq <> j.seq
       ) AS others_on_conflict
FROM lanes l
CROSS JOIN LATERAL (
    SELECT * FROM jobs q
    WHERE q.profile_id = l.profile_id AND q.state = 'queued'
    ORDER BY q.priority DESC, q.seq
    LIMIT 1
) j
LEFT JOIN LATERAL (
    SELECT q.job_id, q.pool, q.task, q.priority, q.mode FROM jobs q
    WHERE q.profile_id = l.profile_id AND q.state = 'queued'
    ORDER BY q.priority DESC, q.seq
    LIMIT 1 OFFSET 1
) n ON TRUE
WHERE l.profile_id IN :ids[];

-- Open runs are read lane by lane: a plan that was made while there were no runs must not scan all runs later.

-- name: open_runs
SELECT r.* FROM lanes l
CROSS JOIN LATERAL (
    SELECT * FROM runs q WHERE q.profile_id = l.profile_id AND q.open ORDER BY q.token OFFSET 0
) r
WHERE l.profile_id IN :ids[];

-- name: moving_runs
SELECT r.lease_id, r.run_id, r.heartbeat_at, r.expires_at, r.last_safe_step, r.last_safe_at, r.last_url,
       r.open_section, r.section_at, r.section_idempotent, r.left_section, r.asks_person, r.person_answer, r.status,
       r.unresolved, r.ended_at, j.version AS job_version
FROM lanes l
CROSS JOIN LATERAL (
    SELECT * FROM runs q WHERE q.profile_id = l.profile_id AND q.open ORDER BY q.token OFFSET 0
) r
LEFT JOIN jobs j ON j.job_id = r.job_id AND j.run_id = r.run_id AND j.state = 'running'
WHERE l.profile_id IN :ids[];

-- name: running_jobs
SELECT j.* FROM lanes l
CROSS JOIN LATERAL (
    SELECT * FROM runs q WHERE q.profile_id = l.profile_id AND q.open OFFSET 0
) r
JOIN jobs j ON j.job_id = r.job_id AND j.run_id = r.run_id AND j.state = 'running'
WHERE l.profile_id IN :ids[];

-- name: lock_pool
SELECT max_leases FROM limits WHERE pool = :pool FOR NO KEY UPDATE;

-- name: lock_accounts
SELECT * FROM accounts WHERE account_id IN :ids[] ORDER BY account_id FOR NO KEY UPDATE;

-- name: lock_accounts_free
SELECT account_id, version FROM accounts WHERE account_id IN :ids[] ORDER BY account_id FOR NO KEY UPDATE SKIP LOCKED;

-- name: lock_deliveries
SELECT * FROM deliveries WHERE delivery_id IN :ids[] ORDER BY delivery_id FOR NO KEY UPDATE;

-- name: lock_deliveries_free
SELECT * FROM deliveries WHERE delivery_id IN :ids[] ORDER BY delivery_id FOR NO KEY UPDATE SKIP LOCKED;

-- The first few due messages of each host. Hosts with pending messages are found one after the other by the index.

-- name: due_deliveries
WITH RECURSIVE hosts (host, place) AS (
    SELECT (SELECT min(q.host) FROM deliveries q WHERE q.ended_at IS NULL AND q.host > :after), 1
    UNION ALL
    SELECT (SELECT min(q.host) FROM deliveries q WHERE q.ended_at IS NULL AND q.host > hosts.host), place + 1
    FROM hosts WHERE hosts.host IS NOT NULL AND place < :hosts
)
SELECT h.host, d.delivery_id, d.due_at FROM hosts h
LEFT JOIN LATERAL (
    SELECT q.delivery_id, q.due_at FROM deliveries q
    WHERE q.ended_at IS NULL AND q.host = h.host AND q.due_at <= :now
      AND CASE WHEN q.endpoint_id IS NULL THEN CAST(:callbacks AS integer) ELSE CAST(:endpoints AS integer) END = 1
    ORDER BY q.due_at, q.seq
    LIMIT :each
) d ON TRUE
WHERE h.host IS NOT NULL;

-- name: lock_fleet
SELECT only_row FROM fleet_lock FOR UPDATE;

-- name: lock_all_lanes
SELECT count(*) AS locked FROM (SELECT profile_id FROM lanes ORDER BY profile_id FOR UPDATE) AS l;

-- A key without a call has no row to lock yet: an advisory lock on its name is taken.

-- name: lock_calls
SELECT pg_advisory_xact_lock(hashtextextended('leasekeeper:call:' || :key, 0));

-- name: lock_tokens
SELECT * FROM tokens WHERE token_id IN :ids[] ORDER BY token_id FOR UPDATE;

-- name: lock_secrets
SELECT * FROM secrets WHERE name IN :names[] ORDER BY name FOR UPDATE;

-- name: find_profile__label
AND CAST(t.labels AS jsonb) ->> CAST(:label_name AS text) = CAST(:label_value AS text);

-- name: find_lane__label
AND t.profile_id IN (
    SELECT p.profile_id FROM profiles p WHERE CAST(p.labels AS jsonb) ->> CAST(:label_name AS text) = CAST(:label_value AS text)
);

-- name: lock_endpoints
SELECT * FROM endpoints WHERE endpoint_id IN :ids[] ORDER BY endpoint_id FOR UPDATE;

-- name: lock_silent_workers
SELECT * FROM workers WHERE stopped_at IS NULL AND silent_since IS NULL AND heartbeat_at <= :since
ORDER BY incarnation LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED;
