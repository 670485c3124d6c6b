-- Reads that name locks elsewhere: here the writer has the database to itself, so they only read.

-- name: lock_lanes
SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id;

-- name: lock_lanes_free
SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id;

-- name: lock_ready
SELECT *, (SELECT max_leases FROM limits WHERE limits.pool = :pool) AS pool_limit FROM lanes
WHERE head_pool = :pool AND head_task = :task AND hold IS NULL AND head_job_id IS NOT NULL
  AND (engine IS NULL OR CAST(:engine AS INTEGER) IS NULL OR engine <= CAST(:engine AS INTEGER))
ORDER BY head_priority DESC, waiting_at, profile_id
LIMIT :most;

-- name: lock_ready_among
SELECT l.*, (SELECT max_leases FROM limits WHERE limits.pool = :pool) AS pool_limit FROM json_each(:tasks) t CROSS JOIN lanes l
WHERE l.profile_id IN (
    SELECT r.profile_id FROM lanes r
    WHERE r.head_pool = :pool AND r.head_task = t.value AND r.hold IS NULL AND r.head_job_id IS NOT NULL
      AND (r.engine IS NULL OR CAST(:engine AS INTEGER) IS NULL OR r.engine <= CAST(:engine AS INTEGER))
    ORDER BY r.head_priority DESC, r.waiting_at, r.profile_id
    LIMIT :most
)
ORDER BY l.head_priority DESC, l.waiting_at, l.profile_id
LIMIT :most;

-- name: heads
SELECT j.* FROM json_each(:ids) i CROSS JOIN jobs j
WHERE j.seq IN (
    SELECT q.seq FROM jobs q
    WHERE q.profile_id = i.value AND q.state = 'queued'
    ORDER BY q.priority DESC, q.seq
    LIMIT 2
)
ORDER BY j.profile_id, j.priority DESC, j.seq;

-- name: lock_pool
SELECT max_leases FROM limits WHERE pool = :pool;

-- name: lock_accounts
SELECT account_id, version FROM accounts WHERE account_id IN :ids[] ORDER BY account_id;

-- name: lock_accounts_free
SELECT account_id, version FROM accounts WHERE account_id IN :ids[] ORDER BY account_id;

-- name: lock_fleet
SELECT 1 AS locked;
