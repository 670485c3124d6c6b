-- Writes of one row at a time. The writes of a claim or a settle come first.

-- name: update_jobs
UPDATE jobs SET
    state = :state, blocked_reason = :blocked_reason, detail = :detail, attempt = :attempt,
    losses = :losses, given_back = :given_back, approved = :approved, dropped = :dropped, run_id = :run_id,
    stop_reason = :stop_reason, run_at = :run_at, finished_at = :finished_at, version = :version
WHERE seq = :seq;

-- name: prioritize_jobs
UPDATE jobs SET priority = :priority WHERE seq = :seq;

-- name: update_lanes
UPDATE lanes SET
    state = :state, state_reason = :state_reason, state_cause = :state_cause, state_data = :state_data, state_at = :state_at, token = :token,
    version = :version, clean = :clean, drain = :drain, drain_reason = :drain_reason,
    drain_cause = :drain_cause, drain_data = :drain_data, tier = :tier, ban_status = :ban_status, verdict = :verdict,
    verdict_reason = :verdict_reason, verdict_cause = :verdict_cause, verdict_data = :verdict_data, engine = :engine, head_job_id = :head_job_id,
    head_pool = :head_pool, head_task = :head_task, head_priority = :head_priority,
    head_shared = :head_shared, waiting_at = :waiting_at, blocked_by = :blocked_by, waits_on = :waits_on, home = :home,
    reserved_for = :reserved_for, snapshot = :snapshot, saved = :saved, unsaved_reason = :unsaved_reason, size_bytes = :size_bytes,
    revision = :revision
WHERE profile_id = :profile_id;

-- name: insert_runs
INSERT INTO runs (
    profile_id, token, lease_id, run_id, account_id, job_id, task, attempt, worker_id, incarnation,
    proxy_id, pool, routing_key, mode, acquired_at, heartbeat_at, expires_at, ttl_ms, lock_delay_ms, renew_ms,
    release_policy, status, purpose, priority, unresolved, run_mode, expected, machine
) VALUES (
    :profile_id, :token, :lease_id, :run_id, :account_id, :job_id, :task, :attempt, :worker_id,
    :incarnation, :proxy_id, :pool, :routing_key, :mode, :acquired_at, :heartbeat_at, :expires_at,
    :ttl_ms, :lock_delay_ms, :renew_ms, :release_policy, :status, :purpose, :priority, :unresolved, :run_mode, :expected,
    :machine
);

-- name: end_runs
UPDATE runs SET
    status = :status, ended_at = :ended_at, unresolved = :unresolved, open = :unresolved, result = :result,
    stop_reason = :stop_reason, belongs_to = :belongs_to, message = :message, final_url = :final_url,
    evidence = :evidence, output = :output, actual = :actual, timings = :timings,
    proxy_id = CASE WHEN :proxy_used THEN proxy_id END
WHERE profile_id = :profile_id AND token = :token;

-- name: insert_events
INSERT INTO events (
    at, type, account_id, profile_id, job_id, run_id, worker_id, actor, job_state, profile_state, data
) VALUES (
    :at, :type, :account_id, :profile_id, :job_id, :run_id, :worker_id, :actor, :job_state,
    :profile_state, :data
);

-- name: insert_jobs
INSERT INTO jobs (
    job_id, account_id, profile_id, task, payload, pool, attempt, max_attempts, idempotency_key,
    body_hash, priority, run_at, mode, allowed_actions, expected_proxy_region, expected_language,
    expected_timezone, proxy_id, run_mode, risk_level, lock_timeout_seconds, release_policy,
    session_mode, on_conflict, conflict_delay_seconds, retry, callback_url, traceparent, created_at, labels, notes,
    state, blocked_reason, detail, losses, given_back, approved, dropped, run_id, stop_reason, finished_at, version
) VALUES (
    :job_id, :account_id, :profile_id, :task, :payload, :pool, :attempt, :max_attempts,
    :idempotency_key, :body_hash, :priority, :run_at, :mode, :allowed_actions, :expected_proxy_region,
    :expected_language, :expected_timezone, :proxy_id, :run_mode, :risk_level, :lock_timeout_seconds,
    :release_policy, :session_mode, :on_conflict, :conflict_delay_seconds, :retry, :callback_url, :traceparent,
    :created_at, :labels, :notes, :state, :blocked_reason, :detail, :losses, :given_back, :approved, :dropped, :run_id, :stop_reason,
    :finished_at, :version
);

-- name: insert_lanes
INSERT INTO lanes (
    profile_id, account_id, state, state_reason, state_cause, state_data, state_at, token, version, clean,
    drain, drain_reason, drain_cause, drain_data, tier, ban_status, verdict,
    verdict_reason, verdict_cause, verdict_data, engine, head_job_id, head_pool, head_task, head_priority, head_shared, waiting_at,
    blocked_by, waits_on, home, reserved_for, snapshot, saved, unsaved_reason, size_bytes, revision
) VALUES (
    :profile_id, :account_id, :state, :state_reason, :state_cause, :state_data, :state_at, :token, :version, :clean,
    :drain, :drain_reason, :drain_cause, :drain_data, :tier, :ban_status,
    :verdict, :verdict_reason, :verdict_cause, :verdict_data, :engine, :head_job_id, :head_pool, :head_task, :head_priority,
    :head_shared, :waiting_at, :blocked_by, :waits_on, :home, :reserved_for, :snapshot, :saved,
    :unsaved_reason, :size_bytes, :revision
);

-- name: renew_runs
UPDATE runs SET
    heartbeat_at = :heartbeat_at, expires_at = :expires_at, status = :status
WHERE profile_id = :profile_id AND token = :token;

-- name: step_runs
UPDATE runs SET
    last_safe_step = :last_safe_step, last_safe_at = :last_safe_at, last_url = :last_url,
    open_section = :open_section, section_at = :section_at,
    section_idempotent = :section_idempotent, left_section = :left_section, asks_person = :asks_person,
    person_answer = :person_answer
WHERE profile_id = :profile_id AND token = :token;

-- name: insert_reviews
INSERT INTO reviews (
    review_id, target, subject, account_id, profile_id, job_id, run_id, reason, summary, opened_at,
    proxy_id, decided_at, decision, note, actor
) VALUES (
    :review_id, :target, :subject, :account_id, :profile_id, :job_id, :run_id, :reason, :summary,
    :opened_at, :proxy_id, :decided_at, :decision, :note, :actor
)
ON CONFLICT (target, subject) WHERE decided_at IS NULL DO NOTHING;

-- name: insert_deliveries
INSERT INTO deliveries (
    delivery_id, job_id, endpoint_id, type, url, host, body, traceparent, created_at, state, due_at, attempts, spent,
    attempted_at, answer, ended_at
) VALUES (
    :delivery_id, :job_id, :endpoint_id, :type, :url, :host, :body, :traceparent, :created_at, :state, :due_at,
    :attempts, :spent, :attempted_at, :answer, :ended_at
);

-- name: update_deliveries
UPDATE deliveries SET
    state = :state, due_at = :due_at, attempts = :attempts, spent = :spent, attempted_at = :attempted_at,
    answer = :answer, ended_at = :ended_at
WHERE seq = :seq;

-- name: hasten_deliveries
UPDATE deliveries SET due_at = :now WHERE ended_at IS NULL AND due_at > :latest;

-- name: put_workers
INSERT INTO workers (
    incarnation, worker_id, pool, tasks, concurrency, engine, version, started_at, heartbeat_at, stopped_at,
    unwell_reason, unwell_since, silent_since, machine
) VALUES (
    :incarnation, :worker_id, :pool, :tasks, :concurrency, :engine, :version, :started_at, :heartbeat_at,
    :stopped_at, :unwell_reason, :unwell_since, :silent_since, :machine
)
ON CONFLICT (incarnation) DO UPDATE SET
    pool = excluded.pool, tasks = excluded.tasks, concurrency = excluded.concurrency,
    engine = excluded.engine, version = excluded.version, heartbeat_at = excluded.heartbeat_at, stopped_at = excluded.stopped_at,
    unwell_reason = excluded.unwell_reason, unwell_since = excluded.unwell_since,
    silent_since = excluded.silent_since, machine = excluded.machine;

-- name: silence_workers
UPDATE workers SET silent_since = :silent_since WHERE incarnation = :incarnation;

-- name: insert_tasks
INSERT INTO tasks (
    pool, task, first_seen_at
) VALUES (
    :pool, :task, :first_seen_at
)
ON CONFLICT (pool, task) DO NOTHING;

-- name: put_accounts
INSERT INTO accounts (
    account_id, routing, url, canary_url, canary_selector, labels, notes, paused, pause_note, ban_status, version
) VALUES (
    :account_id, :routing, :url, :canary_url, :canary_selector, :labels, :notes, :paused, :pause_note, :ban_status, :version
)
ON CONFLICT (account_id) DO UPDATE SET
    routing = excluded.routing, url = excluded.url, canary_url = excluded.canary_url,
    canary_selector = excluded.canary_selector, labels = excluded.labels, notes = excluded.notes;

-- name: put_proxies
INSERT INTO proxies (
    proxy_id, server, region, credentials, trouble, trouble_detail, trouble_at, asked, ask_at
) VALUES (
    :proxy_id, :server, :region, :credentials, :trouble, :trouble_detail, :trouble_at, :asked, :ask_at
)
ON CONFLICT (proxy_id) DO UPDATE SET
    server = excluded.server, region = excluded.region, credentials = excluded.credentials,
    trouble = excluded.trouble, trouble_detail = excluded.trouble_detail, trouble_at = excluded.trouble_at,
    asked = excluded.asked, ask_at = excluded.ask_at;

-- name: put_launchers
INSERT INTO launchers (
    launcher_id, driver, url, api_token, folder, max_running, calls_per_minute, start_timeout_seconds, calls
) VALUES (
    :launcher_id, :driver, :url, :api_token, :folder, :max_running, :calls_per_minute, :start_timeout_seconds, :calls
)
ON CONFLICT (launcher_id) DO UPDATE SET
    driver = excluded.driver, url = excluded.url, api_token = excluded.api_token, folder = excluded.folder,
    max_running = excluded.max_running, calls_per_minute = excluded.calls_per_minute,
    start_timeout_seconds = excluded.start_timeout_seconds, calls = excluded.calls;

-- name: put_profiles
INSERT INTO profiles (
    profile_id, account_id, pool, tier, driver, user_data_dir, proxy_id, launcher_id, launcher_profile, language, timezone, "window",
    max_active_runs, disposable, warm, record, release_policy, manual_use, keep_snapshots, max_size_mb, labels, notes
) VALUES (
    :profile_id, :account_id, :pool, :tier, :driver, :user_data_dir, :proxy_id, :launcher_id, :launcher_profile, :language, :timezone, :window,
    :max_active_runs, :disposable, :warm, :record, :release_policy, :manual_use, :keep_snapshots, :max_size_mb, :labels, :notes
)
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
) VALUES (
    :pool, :max_leases
)
ON CONFLICT (pool) DO UPDATE SET
    max_leases = excluded.max_leases;

-- name: resolve_runs
UPDATE runs SET
    unresolved = FALSE,
    open = FALSE,
    result = CASE result WHEN 'started' THEN 'failed' ELSE result END,
    stop_reason = coalesce(stop_reason, :stop_reason),
    belongs_to = coalesce(belongs_to, :belongs_to),
    message = CASE message WHEN '' THEN :message ELSE message END,
    final_url = coalesce(final_url, :final_url),
    evidence = :evidence
WHERE profile_id = :profile_id AND token = :token;

-- name: ask_again
UPDATE runs SET ask_at = :ask_at
WHERE profile_id = :profile_id AND token = :token AND (:asked OR ask_at IS NULL);

-- name: keep_reports
UPDATE runs SET final_url = coalesce(final_url, :final_url), evidence = :evidence
WHERE profile_id = :profile_id AND token = :token
  AND ended_at IS NOT NULL AND status IN ('expired', 'revoked') AND evidence = '{}';

-- name: close_reviews
UPDATE reviews SET decided_at = :decided_at, decision = :decision, note = :note, actor = :actor
WHERE target = :target AND subject = :subject AND decided_at IS NULL;

-- name: count_change
UPDATE fleet_lock SET revision = revision + :changes;

-- name: pause_expiry
UPDATE fleet_lock SET expiry_resumes_at = max(CASE WHEN :back THEN 0 ELSE expiry_resumes_at END, :resumes_at);

-- name: restart_expiry
UPDATE runs SET expires_at = :now + ttl_ms * 1000 WHERE ended_at IS NULL;

-- name: pause_accounts
UPDATE accounts SET paused = :paused, pause_note = :pause_note, ban_status = :ban_status, version = version + 1 WHERE account_id = :account_id;

-- name: delete_limit
DELETE FROM limits WHERE pool = :id;

-- name: retire_accounts
INSERT INTO retired_accounts (account_id, paused, pause_note, ban_status, version)
SELECT account_id, paused, pause_note, ban_status, version FROM accounts WHERE account_id = :id
ON CONFLICT (account_id) DO UPDATE SET
    paused = excluded.paused, pause_note = excluded.pause_note, ban_status = excluded.ban_status,
    version = excluded.version;

-- name: delete_account
DELETE FROM accounts WHERE account_id = :id;

-- name: delete_launcher
DELETE FROM launchers WHERE launcher_id = :id;

-- name: put_call_turns
INSERT INTO call_turns (key, next_at) VALUES (:key, :next_at)
ON CONFLICT (key) DO UPDATE SET next_at = excluded.next_at;

-- name: delete_proxy
DELETE FROM proxies WHERE proxy_id = :id;

-- name: delete_profile
DELETE FROM profiles WHERE profile_id = :id;

-- name: retire_lanes
INSERT INTO retired_lanes (profile_id, account_id, token, state, state_reason, state_cause, state_data, clean, engine, ban_status, home, snapshot, saved, unsaved_reason, revision)
SELECT profile_id, account_id, token, state, state_reason, state_cause, state_data, clean, engine, ban_status, home, snapshot, saved, unsaved_reason, revision
FROM lanes WHERE profile_id = :id
ON CONFLICT (profile_id) DO UPDATE SET
    account_id = excluded.account_id, token = excluded.token, state = excluded.state,
    state_reason = excluded.state_reason, state_cause = excluded.state_cause, state_data = excluded.state_data, clean = excluded.clean, engine = excluded.engine,
    ban_status = excluded.ban_status, home = excluded.home, snapshot = excluded.snapshot, saved = excluded.saved,
    unsaved_reason = excluded.unsaved_reason, revision = excluded.revision;

-- name: delete_lane
DELETE FROM lanes WHERE profile_id = :id;

-- name: prune_jobs
DELETE FROM jobs WHERE seq = :seq AND finished_at = :finished_at;

-- name: prune_job_runs
DELETE FROM runs WHERE job_id = :job_id AND ended_at IS NOT NULL;

-- name: prune_job_reviews
DELETE FROM reviews WHERE profile_id = :profile_id AND job_id = :job_id;

-- name: prune_deliveries
DELETE FROM deliveries WHERE seq = :seq AND ended_at = :ended_at;

-- name: put_answers
INSERT INTO answers (slot, sequence, operation, body, answer, at)
VALUES (:slot, :sequence, :operation, :body, :answer, :at)
ON CONFLICT (slot) DO UPDATE SET
    sequence = CASE WHEN answers.sequence < excluded.sequence THEN excluded.sequence ELSE -1 END,
    operation = excluded.operation, body = excluded.body, answer = excluded.answer, at = excluded.at;

-- name: prune_answers
DELETE FROM answers WHERE slot = :slot AND sequence = :sequence;

-- name: prune_events
DELETE FROM events WHERE seq = :seq;

-- name: prune_runs
DELETE FROM runs WHERE profile_id = :profile_id AND token = :token;

-- name: insert_tokens
INSERT INTO tokens (
    token_id, name, scopes, accounts, pools, created_at, created_by, expires_at, used_at, revoked_at, hash
) VALUES (
    :token_id, :name, :scopes, :accounts, :pools, :created_at, :created_by, :expires_at, :used_at, :revoked_at, :hash
);

-- name: revoke_tokens
UPDATE tokens SET revoked_at = :revoked_at WHERE token_id = :token_id;

-- name: use_tokens
UPDATE tokens SET used_at = :used_at WHERE token_id = :token_id;

-- name: put_secrets
INSERT INTO secrets (name, key_id, sealed, version, created_at, updated_at, updated_by)
VALUES (:name, :key_id, :sealed, :version, :created_at, :updated_at, :updated_by)
ON CONFLICT (name) DO UPDATE SET
    key_id = excluded.key_id, sealed = excluded.sealed, version = excluded.version,
    updated_at = excluded.updated_at, updated_by = excluded.updated_by;

-- name: delete_secret
DELETE FROM secrets WHERE name = :id;

-- name: insert_notes
INSERT INTO notes (
    note_id, about, subject, by_run, account_id, profile_id, job_id, run_id, author, text, written_at
) VALUES (
    :note_id, :about, :subject, :by_run, :account_id, :profile_id, :job_id, :run_id, :author, :text, :written_at
);

-- name: delete_notes
DELETE FROM notes WHERE note_id = :note_id;

-- name: put_endpoints
INSERT INTO endpoints (endpoint_id, url, events, description, state, reason, created_at, created_by, changed_at)
VALUES (:endpoint_id, :url, :events, :description, :state, :reason, :created_at, :created_by, :changed_at)
ON CONFLICT (endpoint_id) DO UPDATE SET
    state = excluded.state, reason = excluded.reason, changed_at = excluded.changed_at;

-- name: delete_endpoint
DELETE FROM endpoints WHERE endpoint_id = :id;

-- name: put_pauses
INSERT INTO pauses (pause_id, scope, name, note, actor, since, until)
VALUES (:pause_id, :scope, :name, :note, :actor, :since, :until)
ON CONFLICT (pause_id) DO UPDATE SET
    note = excluded.note, actor = excluded.actor, since = excluded.since, until = excluded.until;

-- name: delete_pauses
DELETE FROM pauses WHERE pause_id = :pause_id;

-- name: insert_snapshots
INSERT INTO snapshots (
    snapshot_id, profile_id, account_id, token, run_id, task, machine, engine, created_at, size_bytes, packed_bytes,
    sha256, contents_hash, place, key_id, clean, verdict, restored_from, discarded_at
) VALUES (
    :snapshot_id, :profile_id, :account_id, :token, :run_id, :task, :machine, :engine, :created_at, :size_bytes, :packed_bytes,
    :sha256, :contents_hash, :place, :key_id, :clean, :verdict, :restored_from, :discarded_at
);

-- name: discard_snapshots
UPDATE snapshots SET discarded_at = :discarded_at WHERE snapshot_id = :snapshot_id;

-- name: delete_snapshots
DELETE FROM snapshots WHERE snapshot_id = :snapshot_id;

-- name: put_fleet_settings
INSERT INTO fleet_settings (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: delete_fleet_setting
DELETE FROM fleet_settings WHERE name = :id;
