-- The writes of a claim or a settle, which are combined into one statement (see combined_writes.py), and the last write
-- of every transaction: a random nonce that marks its commit, in place of the previous nonce of its connection.

-- name: update_jobs
UPDATE jobs t SET
    state = r.state, blocked_reason = r.blocked_reason, detail = r.detail, attempt = r.attempt,
    losses = r.losses, given_back = r.given_back, approved = r.approved, dropped = r.dropped, run_id = r.run_id,
    stop_reason = r.stop_reason, run_at = r.run_at, finished_at = r.finished_at, version = r.version
FROM :rows (
    seq bigint, state text, blocked_reason text, detail text, attempt bigint, losses bigint,
    given_back bigint, approved boolean,
    dropped boolean, run_id text, stop_reason text, run_at bigint, finished_at bigint, version bigint
)
WHERE t.seq = r.seq;

-- name: update_lanes
UPDATE lanes t SET
    state = r.state, state_reason = r.state_reason, state_cause = r.state_cause, state_data = r.state_data, state_at = r.state_at, token = r.token,
    version = r.version, clean = r.clean, drain = r.drain, drain_reason = r.drain_reason,
    drain_cause = r.drain_cause, drain_data = r.drain_data, tier = r.tier,
    ban_status = r.ban_status, verdict = r.verdict,
    verdict_reason = r.verdict_reason, verdict_cause = r.verdict_cause, verdict_data = r.verdict_data, engine = r.engine, head_job_id = r.head_job_id,
    head_pool = r.head_pool, head_task = r.head_task, head_priority = r.head_priority,
    head_shared = r.head_shared, waiting_at = r.waiting_at, blocked_by = r.blocked_by, waits_on = r.waits_on,
    home = r.home, reserved_for = r.reserved_for, snapshot = r.snapshot, saved = r.saved, unsaved_reason = r.unsaved_reason,
    size_bytes = r.size_bytes, revision = r.revision
FROM :rows (
    profile_id text, state text, state_reason text, state_cause text, state_data text, state_at bigint, token bigint, version bigint, clean boolean,
    drain text, drain_reason text, drain_cause text, drain_data text, tier text, ban_status text,
    verdict text, verdict_reason text, verdict_cause text, verdict_data text, engine bigint, head_job_id text, head_pool text,
    head_task text, head_priority bigint, head_shared boolean, waiting_at bigint, blocked_by text, waits_on text, home text,
    reserved_for text, snapshot bigint, saved boolean, unsaved_reason text, size_bytes bigint, revision bigint
)
WHERE t.profile_id = r.profile_id;

-- name: insert_runs
INSERT INTO runs (
    profile_id, token, lease_id, run_id, account_id, job_id, task, attempt, worker_id, incarnation,
    proxy_id, pool, routing_key, mode, acquired_at, heartbeat_at, expires_at, ttl_ms, lock_delay_ms, renew_ms,
    release_policy, status, purpose, priority, unresolved, run_mode, expected, machine
) SELECT
    profile_id, token, lease_id, run_id, account_id, job_id, task, attempt, worker_id, incarnation,
    proxy_id, pool, routing_key, mode, acquired_at, heartbeat_at, expires_at, ttl_ms, lock_delay_ms, renew_ms,
    release_policy, status, purpose, priority, unresolved, run_mode, expected, machine
FROM :rows (
    profile_id text, token bigint, lease_id text, run_id text, account_id text, job_id text, task text, attempt bigint,
    worker_id text, incarnation text, proxy_id text, pool text, routing_key text, mode text, acquired_at bigint,
    heartbeat_at bigint, expires_at bigint, ttl_ms bigint, lock_delay_ms bigint, renew_ms bigint, release_policy text,
    status text, purpose text, priority bigint, unresolved boolean, run_mode text, expected text,
    machine text
)
WHERE r.run_id IS NOT NULL;

-- name: put_answers
INSERT INTO answers (slot, sequence, operation, body, answer, at)
SELECT slot, sequence, operation, body, answer, at
FROM :rows (slot text, sequence bigint, operation text, body text, answer text, at bigint)
WHERE r.slot IS NOT NULL
ON CONFLICT (slot) DO UPDATE SET
    sequence = CASE WHEN answers.sequence < excluded.sequence THEN excluded.sequence ELSE -1 END,
    operation = excluded.operation, body = excluded.body, answer = excluded.answer, at = excluded.at;

-- name: end_runs
UPDATE runs t SET
    status = r.status, ended_at = r.ended_at, unresolved = r.unresolved, open = r.unresolved, result = r.result,
    stop_reason = r.stop_reason, belongs_to = r.belongs_to, message = r.message,
    final_url = r.final_url, evidence = r.evidence, output = r.output, actual = r.actual,
    timings = r.timings, proxy_id = CASE WHEN r.proxy_used THEN t.proxy_id END
FROM :rows (
    profile_id text, token bigint, status text, ended_at bigint, unresolved boolean, result text, stop_reason text,
    belongs_to text, message text, final_url text, evidence text, output text, actual text, timings text,
    proxy_used boolean
)
WHERE t.profile_id = r.profile_id AND t.token = r.token;

-- name: insert_events
INSERT INTO events (
    at, type, account_id, profile_id, job_id, run_id, worker_id, actor, job_state, profile_state, data
) SELECT
    at, type, account_id, profile_id, job_id, run_id, worker_id, actor, job_state, profile_state, data
FROM :rows (
    at bigint, type text, account_id text, profile_id text, job_id text, run_id text, worker_id text, actor text,
    job_state text, profile_state text, data text
)
WHERE r.at IS NOT NULL;

-- name: mark_commit
INSERT INTO commits (nonce) SELECT nonce FROM :rows (nonce text);

-- name: unmark_commit
DELETE FROM commits t USING :rows (nonce text) WHERE t.nonce = r.nonce;
