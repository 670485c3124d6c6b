-- The writes of a claim and of a settle, one row at a time: for dialects in which a statement costs little.

-- name: update_jobs
UPDATE jobs SET
    state = :state, blocked_reason = :blocked_reason, detail = :detail, attempt = :attempt,
    losses = :losses, approved = :approved, dropped = :dropped, run_id = :run_id,
    stop_reason = :stop_reason, run_at = :run_at, finished_at = :finished_at, version = :version
WHERE seq = :seq;

-- name: update_lanes
UPDATE lanes SET
    state = :state, state_reason = :state_reason, state_at = :state_at, token = :token,
    version = :version, clean = :clean, drain = :drain, verdict = :verdict,
    verdict_reason = :verdict_reason, engine = :engine, head_job_id = :head_job_id,
    head_pool = :head_pool, head_task = :head_task, head_priority = :head_priority,
    head_shared = :head_shared, waiting_at = :waiting_at, hold = :hold, waits_on = :waits_on
WHERE profile_id = :profile_id;

-- name: insert_runs
INSERT INTO runs (
    profile_id, token, lease_id, run_id, account_id, job_id, task, attempt, worker_id, incarnation,
    proxy_id, pool, routing_key, mode, acquired_at, heartbeat_at, expires_at, ttl_ms, lock_delay_ms,
    release_policy, status, purpose, priority, unresolved, run_mode, expected
) VALUES (
    :profile_id, :token, :lease_id, :run_id, :account_id, :job_id, :task, :attempt, :worker_id,
    :incarnation, :proxy_id, :pool, :routing_key, :mode, :acquired_at, :heartbeat_at, :expires_at,
    :ttl_ms, :lock_delay_ms, :release_policy, :status, :purpose, :priority, :unresolved, :run_mode, :expected
);

-- name: end_runs
UPDATE runs SET
    status = :status, ended_at = :ended_at, unresolved = :unresolved, open = :unresolved, result = :result,
    stop_reason = :stop_reason, belongs_to = :belongs_to, message = :message, final_url = :final_url,
    evidence = :evidence, output = :output, actual = :actual, timings = :timings
WHERE profile_id = :profile_id AND token = :token;

-- name: insert_events
INSERT INTO events (
    at, type, account_id, profile_id, job_id, run_id, worker_id, actor, job_state, profile_state, data
) VALUES (
    :at, :type, :account_id, :profile_id, :job_id, :run_id, :worker_id, :actor, :job_state,
    :profile_state, :data
);
