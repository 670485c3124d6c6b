-- Writes of a whole batch at a time: the rows are one JSON array. The writes of a claim or a settle are in
-- writes_together.sql.

-- name: insert_jobs
INSERT INTO jobs (
    job_id, account_id, profile_id, task, payload, pool, attempt, max_attempts, idempotency_key,
    body_hash, priority, run_at, mode, allowed_actions, expected_proxy_region, expected_language,
    expected_timezone, proxy_id, run_mode, risk_level, lock_timeout_seconds, release_policy,
    session_mode, on_conflict, conflict_delay_seconds, retry, callback_url, traceparent, created_at, labels, notes,
    state, blocked_reason, detail, losses, given_back, approved, dropped, run_id, stop_reason, finished_at, version
) SELECT
    job_id, account_id, profile_id, task, payload, pool, attempt, max_attempts, idempotency_key,
    body_hash, priority, run_at, mode, allowed_actions, expected_proxy_region, expected_language,
    expected_timezone, proxy_id, run_mode, risk_level, lock_timeout_seconds, release_policy,
    session_mode, on_conflict, conflict_delay_seconds, retry, callback_url, traceparent, created_at, labels, notes,
    state, blocked_reason, detail, losses, given_back, approved, dropped, run_id, stop_reason, finished_at, version
FROM json_populate_recordset(NULL::jobs, :rows);

-- name: insert_lanes
INSERT INTO lanes (
    profile_id, account_id, state, state_reason, state_cause, state_data, state_at, token, version, clean,
    drain, drain_reason, drain_cause, drain_data, tier, ban_status, verdict,
    verdict_reason, verdict_cause, verdict_data, engine, head_job_id, head_pool, head_task, head_priority, head_shared, waiting_at,
    blocked_by, waits_on, home, reserved_for, snapshot, saved, unsaved_reason, size_bytes, revision
) SELECT
    profile_id, account_id, state, state_reason, state_cause, state_data, state_at, token, version, clean,
    drain, drain_reason, drain_cause, drain_data, tier, ban_status, verdict,
    verdict_reason, verdict_cause, verdict_data, engine, head_job_id, head_pool, head_task, head_priority, head_shared, waiting_at,
    blocked_by, waits_on, home, reserved_for, snapshot, saved, unsaved_reason, size_bytes, revision
FROM json_populate_recordset(NULL::lanes, :rows);

-- name: renew_runs
UPDATE runs t SET
    heartbeat_at = r.heartbeat_at, expires_at = r.expires_at, status = r.status
FROM json_populate_recordset(NULL::runs, :rows) r
WHERE t.profile_id = r.profile_id AND t.token = r.token;

-- name: step_runs
UPDATE runs t SET
    last_safe_step = r.last_safe_step, last_safe_at = r.last_safe_at, last_url = r.last_url,
    open_section = r.open_section, section_at = r.section_at,
    section_idempotent = r.section_idempotent, left_section = r.left_section, asks_person = r.asks_person,
    person_answer = r.person_answer
FROM json_populate_recordset(NULL::runs, :rows) r
WHERE t.profile_id = r.profile_id AND t.token = r.token;

-- name: insert_reviews
INSERT INTO reviews (
    review_id, target, subject, account_id, profile_id, job_id, run_id, reason, summary, opened_at,
    proxy_id, decided_at, decision, note, actor
) SELECT
    review_id, target, subject, account_id, profile_id, job_id, run_id, reason, summary, opened_at,
    proxy_id, decided_at, decision, note, actor
FROM json_populate_recordset(NULL::reviews, :rows)
ON CONFLICT (target, subject) WHERE decided_at IS NULL DO NOTHING;

-- name: insert_deliveries
INSERT INTO deliveries (
    delivery_id, job_id, endpoint_id, type, url, host, body, traceparent, created_at, state, due_at, attempts, spent,
    attempted_at, answer, ended_at
) SELECT
    delivery_id, job_id, endpoint_id, type, url, host, body, traceparent, created_at, state, due_at, attempts, spent,
    attempted_at, answer, ended_at
FROM json_populate_recordset(NULL::deliveries, :rows);

-- name: update_deliveries
UPDATE deliveries t SET
    state = r.state, due_at = r.due_at, attempts = r.attempts, spent = r.spent, attempted_at = r.attempted_at,
    answer = r.answer, ended_at = r.ended_at
FROM json_populate_recordset(NULL::deliveries, :rows) r
WHERE t.seq = r.seq;

-- name: hasten_deliveries
UPDATE deliveries t SET due_at = r.now
FROM json_to_recordset(:rows) AS r (now bigint, latest bigint)
WHERE t.ended_at IS NULL AND t.due_at > r.latest;

-- name: put_workers
INSERT INTO workers (
    incarnation, worker_id, pool, tasks, concurrency, engine, version, started_at, heartbeat_at, stopped_at,
    unwell_reason, unwell_since, silent_since, machine
) SELECT
    incarnation, worker_id, pool, tasks, concurrency, engine, version, started_at, heartbeat_at, stopped_at,
    unwell_reason, unwell_since, silent_since, machine
FROM json_populate_recordset(NULL::workers, :rows)
ON CONFLICT (incarnation) DO UPDATE SET
    pool = excluded.pool, tasks = excluded.tasks, concurrency = excluded.concurrency,
    engine = excluded.engine, version = excluded.version, heartbeat_at = excluded.heartbeat_at, stopped_at = excluded.stopped_at,
    unwell_reason = excluded.unwell_reason, unwell_since = excluded.unwell_since,
    silent_since = excluded.silent_since, machine = excluded.machine;

-- name: silence_workers
UPDATE workers t SET silent_since = r.silent_since
FROM json_populate_recordset(NULL::workers, :rows) r
WHERE t.incarnation = r.incarnation;

-- name: insert_tasks
INSERT INTO tasks (
    pool, task, first_seen_at
) SELECT
    pool, task, first_seen_at
FROM json_populate_recordset(NULL::tasks, :rows)
ON CONFLICT (pool, task) DO NOTHING;

-- name: put_accounts
INSERT INTO accounts (
    account_id, routing, url, canary_url, canary_selector, labels, notes, paused, pause_note, ban_status, version
) SELECT
    account_id, routing, url, canary_url, canary_selector, labels, notes, paused, pause_note, ban_status, version
FROM json_populate_recordset(NULL::accounts, :rows)
ON CONFLICT (account_id) DO UPDATE SET
    routing = excluded.routing, url = excluded.url, canary_url = excluded.canary_url,
    canary_selector = excluded.canary_selector, labels = excluded.labels, notes = excluded.notes;

-- name: put_proxies
INSERT INTO proxies (
    proxy_id, server, region, credentials, trouble, trouble_detail, trouble_at, asked, ask_at
) SELECT
    proxy_id, server, region, credentials, trouble, trouble_detail, trouble_at, asked, ask_at
FROM json_populate_recordset(NULL::proxies, :rows)
ON CONFLICT (proxy_id) DO UPDATE SET
    server = excluded.server, region = excluded.region, credentials = excluded.credentials,
    trouble = excluded.trouble, trouble_detail = excluded.trouble_detail, trouble_at = excluded.trouble_at,
    asked = excluded.asked, ask_at = excluded.ask_at;

-- name: put_launchers
INSERT INTO launchers (
    launcher_id, driver, url, api_token, folder, max_running, calls_per_minute, start_timeout_seconds, calls
) SELECT
    launcher_id, driver, url, api_token, folder, max_running, calls_per_minute, start_timeout_seconds, calls
FROM json_populate_recordset(NULL::launchers, :rows)
ON CONFLICT (launcher_id) DO UPDATE SET
    driver = excluded.driver, url = excluded.url, api_token = excluded.api_token, folder = excluded.folder,
    max_running = excluded.max_running, calls_per_minute = excluded.calls_per_minute,
    start_timeout_seconds = excluded.start_timeout_seconds, calls = excluded.calls;

-- name: put_profiles
INSERT INTO profiles (
    profile_id, account_id, pool, tier, driver, user_data_dir, proxy_id, launcher_id, launcher_profile, language, timezone, "window",
    max_active_runs, disposable, warm, record, release_policy, manual_use, keep_snapshots, max_size_mb, labels, notes
) SELECT
    profile_id, account_id, pool, tier, driver, user_data_dir, proxy_id, launcher_id, launcher_profile, language, timezone, "window",
    max_active_runs, disposable, warm, record, release_policy, manual_use, keep_snapshots, max_size_mb, labels, notes
FROM json_populate_recordset(NULL::profiles, :rows)
ON CONFLICT (profile_id) DO UPDATE SET
    account_id = excluded.account_id, pool = excluded.pool, tier = excluded.tier, driver = excluded.driver,
    user_data_dir = excluded.user_data_dir, proxy_id = excluded.proxy_id,
    launcher_id = excluded.launcher_id, launcher_profile = excluded.launcher_profile, language = excluded.language,
    timezone = excluded.timezone, "window" = excluded."window",
    max_active_runs = excluded.max_active_runs, disposable = excluded.disposable, warm = excluded.warm, record = excluded.record,
    release_policy = excluded.release_policy, manual_use = excluded.manual_use,
    keep_snapshots = excluded.keep_snapshots, max_size_mb = excluded.max_size_mb,
    labels = excluded.labels, notes = excluded.notes;

-- name: put_limits
INSERT INTO limits (
    pool, max_leases
) SELECT
    pool, max_leases
FROM json_populate_recordset(NULL::limits, :rows)
ON CONFLICT (pool) DO UPDATE SET
    max_leases = excluded.max_leases;

-- name: resolve_runs
UPDATE runs t SET
    unresolved = FALSE,
    open = FALSE,
    result = CASE t.result WHEN 'started' THEN 'failed' ELSE t.result END,
    stop_reason = coalesce(t.stop_reason, r.stop_reason),
    belongs_to = coalesce(t.belongs_to, r.belongs_to),
    message = CASE t.message WHEN '' THEN r.message ELSE t.message END,
    final_url = coalesce(t.final_url, r.final_url),
    evidence = r.evidence
FROM json_to_recordset(:rows) AS r (
    profile_id text, token bigint, stop_reason text, belongs_to text, message text, final_url text,
    evidence text
)
WHERE t.profile_id = r.profile_id AND t.token = r.token;

-- name: ask_again
UPDATE runs t SET ask_at = r.ask_at
FROM json_to_recordset(:rows) AS r (profile_id text, token bigint, ask_at bigint, asked boolean)
WHERE t.profile_id = r.profile_id AND t.token = r.token AND (r.asked OR t.ask_at IS NULL);

-- name: keep_reports
UPDATE runs t SET final_url = coalesce(t.final_url, r.final_url), evidence = r.evidence
FROM json_to_recordset(:rows) AS r (profile_id text, token bigint, final_url text, evidence text)
WHERE t.profile_id = r.profile_id AND t.token = r.token
  AND t.ended_at IS NOT NULL AND t.status IN ('expired', 'revoked') AND t.evidence = '{}';

-- name: close_reviews
UPDATE reviews t SET decided_at = r.decided_at, decision = r.decision, note = r.note, actor = r.actor
FROM json_populate_recordset(NULL::reviews, :rows) r
WHERE t.target = r.target AND t.subject = r.subject AND t.decided_at IS NULL;

-- name: count_change
UPDATE fleet_lock t SET revision = t.revision + r.changes FROM json_to_recordset(:rows) AS r (changes bigint);

-- name: pause_expiry
UPDATE fleet_lock t SET
    expiry_resumes_at = greatest(CASE WHEN r.back THEN 0 ELSE t.expiry_resumes_at END, r.resumes_at)
FROM json_to_recordset(:rows) AS r (resumes_at bigint, back boolean);

-- name: restart_expiry
UPDATE runs t SET expires_at = r.now + t.ttl_ms * 1000
FROM json_to_recordset(:rows) AS r (now bigint)
WHERE t.ended_at IS NULL;

-- name: prioritize_jobs
UPDATE jobs t SET priority = r.priority
FROM json_to_recordset(:rows) AS r (seq bigint, priority bigint)
WHERE t.seq = r.seq;

-- name: pause_accounts
UPDATE accounts t SET paused = r.paused, pause_note = r.pause_note, ban_status = r.ban_status, version = t.version + 1
FROM json_populate_recordset(NULL::accounts, :rows) r
WHERE t.account_id = r.account_id;

-- name: delete_limit
DELETE FROM limits t USING json_to_recordset(:rows) AS r (id text) WHERE t.pool = r.id;

-- name: retire_accounts
INSERT INTO retired_accounts (account_id, paused, pause_note, ban_status, version)
SELECT t.account_id, t.paused, t.pause_note, t.ban_status, t.version
FROM accounts t JOIN json_to_recordset(:rows) AS r (id text) ON t.account_id = r.id
ON CONFLICT (account_id) DO UPDATE SET
    paused = excluded.paused, pause_note = excluded.pause_note, ban_status = excluded.ban_status,
    version = excluded.version;

-- name: delete_account
DELETE FROM accounts t USING json_to_recordset(:rows) AS r (id text) WHERE t.account_id = r.id;

-- name: delete_launcher
DELETE FROM launchers t USING json_to_recordset(:rows) AS r (id text) WHERE t.launcher_id = r.id;

-- name: put_call_turns
INSERT INTO call_turns (key, next_at) SELECT key, next_at
FROM json_populate_recordset(NULL::call_turns, :rows)
ON CONFLICT (key) DO UPDATE SET next_at = excluded.next_at;

-- name: delete_proxy
DELETE FROM proxies t USING json_to_recordset(:rows) AS r (id text) WHERE t.proxy_id = r.id;

-- name: delete_profile
DELETE FROM profiles t USING json_to_recordset(:rows) AS r (id text) WHERE t.profile_id = r.id;

-- name: retire_lanes
INSERT INTO retired_lanes (profile_id, account_id, token, state, state_reason, state_cause, state_data, clean, engine, ban_status, home, snapshot, saved, unsaved_reason, revision)
SELECT t.profile_id, t.account_id, t.token, t.state, t.state_reason, t.state_cause, t.state_data, t.clean, t.engine, t.ban_status, t.home, t.snapshot, t.saved, t.unsaved_reason, t.revision
FROM lanes t JOIN json_to_recordset(:rows) AS r (id text) ON t.profile_id = r.id
ON CONFLICT (profile_id) DO UPDATE SET
    account_id = excluded.account_id, token = excluded.token, state = excluded.state,
    state_reason = excluded.state_reason, state_cause = excluded.state_cause, state_data = excluded.state_data, clean = excluded.clean, engine = excluded.engine,
    ban_status = excluded.ban_status, home = excluded.home, snapshot = excluded.snapshot, saved = excluded.saved,
    unsaved_reason = excluded.unsaved_reason, revision = excluded.revision;

-- name: delete_lane
DELETE FROM lanes t USING json_to_recordset(:rows) AS r (id text) WHERE t.profile_id = r.id;

-- name: prune_jobs
DELETE FROM jobs t USING json_to_recordset(:rows) AS r (seq bigint, finished_at bigint)
WHERE t.seq = r.seq AND t.finished_at = r.finished_at;

-- name: prune_job_runs
DELETE FROM runs t USING json_to_recordset(:rows) AS r (job_id text)
WHERE t.job_id = r.job_id AND t.ended_at IS NOT NULL;

-- name: prune_job_reviews
DELETE FROM reviews t USING json_to_recordset(:rows) AS r (job_id text, profile_id text)
WHERE t.profile_id = r.profile_id AND t.job_id = r.job_id;

-- name: prune_deliveries
DELETE FROM deliveries t USING json_to_recordset(:rows) AS r (seq bigint, ended_at bigint)
WHERE t.seq = r.seq AND t.ended_at = r.ended_at;

-- name: prune_answers
DELETE FROM answers t USING json_to_recordset(:rows) AS r (slot text, sequence bigint)
WHERE t.slot = r.slot AND t.sequence = r.sequence;

-- name: prune_events
DELETE FROM events t USING json_to_recordset(:rows) AS r (seq bigint)
WHERE t.seq = r.seq;

-- name: prune_runs
DELETE FROM runs t USING json_to_recordset(:rows) AS r (profile_id text, token bigint)
WHERE t.profile_id = r.profile_id AND t.token = r.token;

-- name: insert_tokens
INSERT INTO tokens (
    token_id, name, scopes, accounts, pools, created_at, created_by, expires_at, used_at, revoked_at, hash
) SELECT
    token_id, name, scopes, accounts, pools, created_at, created_by, expires_at, used_at, revoked_at, hash
FROM json_populate_recordset(NULL::tokens, :rows);

-- name: revoke_tokens
UPDATE tokens t SET revoked_at = r.revoked_at
FROM json_populate_recordset(NULL::tokens, :rows) r
WHERE t.token_id = r.token_id;

-- name: use_tokens
UPDATE tokens t SET used_at = r.used_at
FROM json_populate_recordset(NULL::tokens, :rows) r
WHERE t.token_id = r.token_id;

-- name: put_secrets
INSERT INTO secrets (name, key_id, sealed, version, created_at, updated_at, updated_by)
SELECT name, key_id, sealed, version, created_at, updated_at, updated_by
FROM json_populate_recordset(NULL::secrets, :rows)
ON CONFLICT (name) DO UPDATE SET
    key_id = excluded.key_id, sealed = excluded.sealed, version = excluded.version,
    updated_at = excluded.updated_at, updated_by = excluded.updated_by;

-- name: delete_secret
DELETE FROM secrets t USING json_to_recordset(:rows) AS r (id text) WHERE t.name = r.id;

-- name: insert_notes
INSERT INTO notes (
    note_id, about, subject, by_run, account_id, profile_id, job_id, run_id, author, text, written_at
) SELECT
    note_id, about, subject, by_run, account_id, profile_id, job_id, run_id, author, text, written_at
FROM json_populate_recordset(NULL::notes, :rows);

-- name: delete_notes
DELETE FROM notes t USING json_populate_recordset(NULL::notes, :rows) r WHERE t.note_id = r.note_id;

-- name: put_endpoints
INSERT INTO endpoints (endpoint_id, url, events, description, state, reason, created_at, created_by, changed_at)
SELECT endpoint_id, url, events, description, state, reason, created_at, created_by, changed_at
FROM json_populate_recordset(NULL::endpoints, :rows)
ON CONFLICT (endpoint_id) DO UPDATE SET
    state = excluded.state, reason = excluded.reason, changed_at = excluded.changed_at;

-- name: delete_endpoint
DELETE FROM endpoints t USING json_to_recordset(:rows) AS r (id text) WHERE t.endpoint_id = r.id;

-- name: put_pauses
INSERT INTO pauses (pause_id, scope, name, note, actor, since, until)
SELECT pause_id, scope, name, note, actor, since, until FROM json_populate_recordset(NULL::pauses, :rows)
ON CONFLICT (pause_id) DO UPDATE SET
    note = excluded.note, actor = excluded.actor, since = excluded.since, until = excluded.until;

-- name: delete_pauses
DELETE FROM pauses t USING json_populate_recordset(NULL::pauses, :rows) r WHERE t.pause_id = r.pause_id;

-- name: insert_snapshots
INSERT INTO snapshots (
    snapshot_id, profile_id, account_id, token, run_id, task, machine, engine, created_at, size_bytes, packed_bytes,
    sha256, contents_hash, place, key_id, clean, verdict, restored_from, discarded_at
) SELECT
    snapshot_id, profile_id, account_id, token, run_id, task, machine, engine, created_at, size_bytes, packed_bytes,
    sha256, contents_hash, place, key_id, clean, verdict, restored_from, discarded_at
FROM json_populate_recordset(NULL::snapshots, :rows);

-- name: discard_snapshots
UPDATE snapshots t SET discarded_at = r.discarded_at FROM json_populate_recordset(NULL::snapshots, :rows) r
WHERE t.snapshot_id = r.snapshot_id;

-- name: delete_snapshots
DELETE FROM snapshots t USING json_populate_recordset(NULL::snapshots, :rows) r WHERE t.snapshot_id = r.snapshot_id;

-- name: put_fleet_settings
INSERT INTO fleet_settings (name, value) SELECT name, value FROM json_populate_recordset(NULL::fleet_settings, :rows)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: delete_fleet_setting
DELETE FROM fleet_settings t USING json_to_recordset(:rows) AS r (id text) WHERE t.name = r.id;
