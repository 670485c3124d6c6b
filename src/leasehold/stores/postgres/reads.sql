-- Reads that take locks. A statement that locks never also reads what the lock protects: it would see the snapshot
-- from before the lock. Whoever waits, waits in the order of ids; a claim never waits (SKIP LOCKED).

-- name: lock_lanes
SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id FOR NO KEY UPDATE;

-- name: lock_lanes_free
SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id FOR NO KEY UPDATE SKIP LOCKED;

-- name: lock_ready
SELECT l.*, (SELECT max_leases FROM limits WHERE limits.pool = :pool) AS pool_limit FROM lanes l
WHERE l.head_pool = :pool AND l.head_task = :task AND l.hold IS NULL AND l.head_job_id IS NOT NULL
  AND (l.engine IS NULL OR CAST(:engine AS bigint) IS NULL OR l.engine <= CAST(:engine AS bigint))
ORDER BY l.head_priority DESC, l.waiting_at, l.profile_id
LIMIT :most
FOR NO KEY UPDATE OF l SKIP LOCKED;

-- name: lock_ready_among
SELECT l.*, (SELECT max_leases FROM limits WHERE limits.pool = :pool) AS pool_limit FROM lanes l
WHERE l.profile_id IN (
    SELECT best.profile_id
    FROM unnest(CAST(:tasks AS text[])) AS offered (task)
    CROSS JOIN LATERAL (
        SELECT r.profile_id FROM lanes r
        WHERE r.head_pool = :pool AND r.head_task = offered.task AND r.hold IS NULL AND r.head_job_id IS NOT NULL
          AND (r.engine IS NULL OR CAST(:engine AS bigint) IS NULL OR r.engine <= CAST(:engine AS bigint))
        ORDER BY r.head_priority DESC, r.waiting_at, r.profile_id
        LIMIT :window
    ) best
)
  AND l.head_pool = :pool AND l.head_task IN :tasks[] AND l.hold IS NULL AND l.head_job_id IS NOT NULL
ORDER BY l.head_priority DESC, l.waiting_at, l.profile_id
LIMIT :most
FOR NO KEY UPDATE OF l SKIP LOCKED;

-- name: heads
SELECT j.* FROM unnest(CAST(:ids AS text[])) AS lane (profile_id)
CROSS JOIN LATERAL (
    SELECT * FROM jobs q
    WHERE q.profile_id = lane.profile_id AND q.state = 'queued'
    ORDER BY q.priority DESC, q.seq
    LIMIT 2
) j
ORDER BY j.profile_id, j.priority DESC, j.seq;

-- name: lock_pool
SELECT max_leases FROM limits WHERE pool = :pool FOR NO KEY UPDATE;

-- name: lock_accounts
SELECT account_id, version FROM accounts WHERE account_id IN :ids[] ORDER BY account_id FOR NO KEY UPDATE;

-- name: lock_accounts_free
SELECT account_id, version FROM accounts WHERE account_id IN :ids[] ORDER BY account_id FOR NO KEY UPDATE SKIP LOCKED;

-- name: lock_fleet
SELECT only_row FROM fleet_lock FOR UPDATE;
