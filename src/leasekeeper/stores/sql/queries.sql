-- Reads that are the same in every dialect. Each dialect has its own reads for locks and for lookups per lane.

-- name: configs
SELECT p.*,
       a.account_id AS a_account_id, a.routing AS a_routing, a.url AS a_url,
       a.canary_url AS a_canary_url, a.canary_selector AS a_canary_selector, a.labels AS a_labels, a.notes AS a_notes,
       a.paused AS a_paused, a.pause_note AS a_pause_note, a.ban_status AS a_ban_status, a.version AS a_version,
       x.proxy_id AS x_proxy_id, x.server AS x_server, x.region AS x_region, x.credentials AS x_credentials,
       x.trouble AS x_trouble, x.trouble_detail AS x_trouble_detail, x.trouble_at AS x_trouble_at, x.asked AS x_asked,
       x.ask_at AS x_ask_at,
       (SELECT f.value FROM fleet_settings f WHERE f.name = 'profile_store') AS profile_store
FROM profiles p
JOIN accounts a ON a.account_id = p.account_id
LEFT JOIN proxies x ON x.proxy_id = p.proxy_id
WHERE p.profile_id IN :ids[];

-- name: one_proxy
SELECT * FROM proxies WHERE proxy_id = :proxy_id;

-- name: profiles_of_proxy
SELECT profile_id, account_id FROM profiles WHERE proxy_id = :proxy_id ORDER BY profile_id;

-- name: run_by_token
SELECT * FROM runs WHERE profile_id = :profile_id AND token = :token;

-- name: profile_of_run
SELECT profile_id FROM runs WHERE run_id = :run_id;

-- name: pool_limit
SELECT max_leases FROM limits WHERE pool = :pool;

-- name: pool_leases
SELECT count(*) AS leases FROM runs WHERE pool = :pool AND ended_at IS NULL;

-- name: account_keys
SELECT a.account_id, a.routing, r.routing_key, count(*) AS leases
FROM accounts a
JOIN profiles p ON p.account_id = a.account_id
JOIN runs r ON r.profile_id = p.profile_id AND r.open AND r.ended_at IS NULL
WHERE a.account_id IN :accounts[]
GROUP BY a.account_id, a.routing, r.routing_key;

-- name: account_key_holders
SELECT r.* FROM profiles p
JOIN runs r ON r.profile_id = p.profile_id AND r.open AND r.ended_at IS NULL
WHERE p.account_id IN :accounts[]
ORDER BY r.acquired_at;

-- name: all_pauses
SELECT * FROM pauses ORDER BY pause_id;

-- name: pauses_among
SELECT * FROM pauses WHERE pause_id IN :ids[];

-- name: pool_known
SELECT 1 AS known WHERE EXISTS (SELECT 1 FROM profiles WHERE pool = :name)
    OR EXISTS (SELECT 1 FROM limits WHERE pool = :name) OR EXISTS (SELECT 1 FROM tasks WHERE pool = :name);

-- name: worker_known
SELECT 1 AS known WHERE EXISTS (SELECT 1 FROM workers WHERE worker_id = :name);

-- name: rested_profiles
SELECT l.profile_id, l.account_id, l.state_at, l.home, l.saved, p.labels, p.tier
FROM lanes l JOIN profiles p ON p.profile_id = l.profile_id
WHERE l.state = 'available' AND l.blocked_by IS NULL AND p.pool = :pool
  AND (l.state_at, l.profile_id) > (CAST(:since AS BIGINT), CAST(:after AS TEXT))
ORDER BY l.state_at, l.profile_id LIMIT :limit;

-- name: count_by_blocked_by
SELECT p.labels, p.tier, l.home, l.saved, coalesce(l.blocked_by, '') AS blocked_by, count(*) AS profiles
FROM lanes l JOIN profiles p ON p.profile_id = l.profile_id
WHERE p.pool = :pool
GROUP BY p.labels, p.tier, l.home, l.saved, coalesce(l.blocked_by, '');

-- name: known_tasks
SELECT pool, task FROM tasks;

-- name: jobs_by_key
SELECT * FROM jobs WHERE idempotency_key IN :keys[];

-- name: jobs_by_id
SELECT * FROM jobs WHERE job_id IN :ids[];

-- name: accounts_among
SELECT account_id FROM accounts WHERE account_id IN :ids[];

-- name: profiles_among
SELECT profile_id, account_id FROM profiles WHERE profile_id IN :profiles[]
UNION
SELECT profile_id, account_id FROM profiles WHERE account_id IN :accounts[]
ORDER BY profile_id;

-- name: due_jobs
SELECT profile_id FROM jobs WHERE state = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit;

-- name: due_jobs_of
SELECT * FROM jobs
WHERE state = 'scheduled' AND run_at <= :now AND profile_id IN :ids[]
ORDER BY run_at, seq LIMIT :limit;

-- name: on_conflict_jobs
SELECT * FROM jobs
WHERE profile_id = :profile_id AND state = 'queued' AND on_conflict <> 'wait' AND NOT approved
ORDER BY priority DESC, seq LIMIT :limit;

-- name: on_conflict_lanes
SELECT taken.profile_id FROM (
    SELECT r.profile_id FROM runs r WHERE r.open
    UNION
    SELECT p.profile_id FROM runs r
    JOIN profiles p ON p.account_id = r.account_id
    WHERE r.ended_at IS NULL AND r.routing_key LIKE 'account:%'
) taken
WHERE taken.profile_id > :after
  AND EXISTS (SELECT 1 FROM jobs WHERE state = 'queued' AND on_conflict <> 'wait' AND NOT approved)
  AND EXISTS (
      SELECT 1 FROM jobs q
      WHERE q.profile_id = taken.profile_id AND q.state = 'queued' AND q.on_conflict <> 'wait' AND NOT q.approved
  )
ORDER BY taken.profile_id LIMIT :limit;

-- name: jobs_without_worker
SELECT profile_id FROM jobs
WHERE state = 'blocked' AND blocked_reason = 'blocked_by_no_worker' AND pool = :pool AND task IN :tasks[]
LIMIT :limit;

-- name: jobs_without_worker_of
SELECT * FROM jobs
WHERE state = 'blocked' AND blocked_reason = 'blocked_by_no_worker' AND pool = :pool AND task IN :tasks[]
  AND profile_id IN :ids[]
ORDER BY seq LIMIT :limit;

-- name: blocked_jobs
SELECT * FROM jobs WHERE state = 'blocked' AND profile_id IN :ids[] ORDER BY seq;

-- name: profiles_with_open_jobs
SELECT DISTINCT profile_id FROM jobs
WHERE profile_id IN :ids[] AND state NOT IN ('completed', 'dead', 'skipped', 'cancelled');

-- name: expired_runs
SELECT profile_id FROM runs WHERE ended_at IS NULL AND expires_at <= :now ORDER BY expires_at LIMIT :limit;

-- name: unresolved_runs
SELECT * FROM runs WHERE unresolved AND (ask_at IS NULL OR ask_at <= :now)
ORDER BY ask_at IS NOT NULL, ask_at, ended_at LIMIT :limit;

-- name: parked_keys
SELECT DISTINCT waits_on FROM lanes WHERE waits_on IS NOT NULL AND waits_on > :after ORDER BY waits_on LIMIT :limit;

-- name: parked_lanes
SELECT profile_id, waits_on, head_priority FROM (
    SELECT profile_id, waits_on, head_priority,
           row_number() OVER (
               PARTITION BY waits_on, head_pool, head_task ORDER BY head_priority DESC, waiting_at, profile_id
           ) AS place
    FROM lanes WHERE waits_on IN :keys[]
) ranked
WHERE place = 1;

-- name: retired_lanes_of
SELECT profile_id, account_id, token, state, state_reason, state_cause, state_data, clean, engine, ban_status, home, snapshot, saved,
       unsaved_reason, revision
FROM retired_lanes WHERE profile_id IN :ids[];

-- name: retired_accounts_of
SELECT account_id, paused, pause_note, ban_status, version FROM retired_accounts WHERE account_id IN :ids[];

-- name: worker
SELECT unwell_reason, unwell_since, silent_since FROM workers WHERE incarnation = :incarnation;

-- name: all_accounts
SELECT * FROM accounts;

-- name: all_profiles
SELECT * FROM profiles;

-- name: all_proxies
SELECT * FROM proxies;

-- name: all_launchers
SELECT * FROM launchers;

-- name: call_turn
SELECT next_at FROM call_turns WHERE key = :key;

-- name: all_limits
SELECT * FROM limits;

-- name: live_workers
SELECT * FROM workers WHERE stopped_at IS NULL AND heartbeat_at > :since;

-- name: full_pools
SELECT l.pool FROM limits l
WHERE (SELECT count(*) FROM runs r WHERE r.pool = l.pool AND r.ended_at IS NULL) >= l.max_leases;

-- name: count_jobs
SELECT state, count(*) AS jobs FROM jobs
WHERE state <> 'queued' AND state <> 'blocked' AND state <> 'running' AND state <> 'dead' GROUP BY state
UNION ALL
SELECT CASE WHEN dropped THEN 'dropped' ELSE state END AS state, count(*) AS jobs FROM jobs
WHERE state = 'dead' AND state <> 'queued' AND state <> 'blocked' AND state <> 'running'
GROUP BY CASE WHEN dropped THEN 'dropped' ELSE state END
UNION ALL
SELECT 'running' AS state, count(*) AS jobs FROM jobs
WHERE state = 'running' AND job_id IN (SELECT r.job_id FROM runs r WHERE r.open);

-- name: newer_lanes
SELECT profile_id, engine, head_pool, head_task FROM lanes WHERE engine > :engine AND head_job_id IS NOT NULL;

-- name: count_waiting
SELECT j.state, j.blocked_reason, l.blocked_by, count(*) AS jobs,
       CASE WHEN CAST(:all_paused AS integer) = 1 OR j.pool IN :paused[] THEN 1 ELSE 0 END AS pool_paused,
       CASE WHEN j.pool IN :full[] THEN 1 ELSE 0 END AS pool_full,
       CASE WHEN (j.pool || '/' || j.task) IN :gone[] OR j.profile_id IN :newer[] THEN 1 ELSE 0 END AS no_worker,
       CASE WHEN NOT (l.saved OR l.home = '' OR (j.pool || '/' || j.task || '@' || l.home) IN :served[]) THEN 1 ELSE 0 END AS away
FROM jobs j JOIN lanes l ON l.profile_id = j.profile_id
WHERE j.state IN ('queued', 'blocked')
GROUP BY j.state, j.blocked_reason, l.blocked_by, pool_paused, pool_full, no_worker, away;

-- name: count_profiles
SELECT state, count(*) AS profiles FROM lanes GROUP BY state;

-- name: count_leases
SELECT pool, count(*) AS leases FROM runs WHERE ended_at IS NULL GROUP BY pool;

-- name: count_reviews
SELECT count(*) AS reviews FROM reviews WHERE decided_at IS NULL;

-- name: lane_of
SELECT * FROM lanes WHERE profile_id = :profile_id;

-- name: ahead_of
SELECT count(*) AS jobs FROM (
    SELECT 1 AS one FROM jobs
    WHERE profile_id = :profile_id AND state = 'queued'
      AND (priority > :priority OR (priority = :priority AND seq < :seq))
    LIMIT 10000
) ahead;

-- name: waiting_in
SELECT count(*) AS jobs FROM (
    SELECT 1 AS one FROM jobs WHERE profile_id = :profile_id AND state IN ('queued', 'blocked') LIMIT 100000
) waiting;

-- name: last_run
SELECT * FROM runs WHERE profile_id = :profile_id ORDER BY token DESC LIMIT 1;

-- name: open_reviews_of
SELECT * FROM reviews WHERE profile_id = :profile_id AND decided_at IS NULL ORDER BY review_id;

-- name: notes_on
SELECT * FROM notes
WHERE (about = 'profile' AND subject = :profile_id) OR (about = 'account' AND subject = :account_id)
ORDER BY note_id DESC LIMIT :limit;

-- name: notes_beyond
SELECT note_id FROM notes WHERE about = :about AND subject = :subject AND by_run = :by_run
ORDER BY note_id DESC LIMIT :limit OFFSET :kept;

-- name: notes_of_run
SELECT about, text FROM notes WHERE run_id = :run_id;

-- name: finished_jobs
SELECT seq, job_id, profile_id, finished_at FROM jobs
WHERE finished_at < :before
  AND job_id NOT IN (SELECT r.job_id FROM runs r WHERE r.unresolved AND r.job_id IS NOT NULL)
ORDER BY finished_at LIMIT :limit;

-- name: lanes_there
SELECT profile_id FROM lanes WHERE profile_id IN :ids[];

-- name: answer_of
SELECT sequence, operation, body, answer FROM answers WHERE slot = :slot;

-- name: old_answers
SELECT slot, sequence FROM answers WHERE at < :cutoff LIMIT :limit;

-- name: old_events
SELECT seq FROM events t
WHERE seq < :before AND at < :cutoff AND seq < (SELECT max(e.seq) FROM events e)
  AND NOT (
      profile_state IS NOT NULL
      AND EXISTS (SELECT 1 FROM lanes l WHERE l.profile_id = t.profile_id)
      AND NOT EXISTS (
          SELECT 1 FROM events n WHERE n.profile_id = t.profile_id AND n.seq > t.seq AND n.profile_state IS NOT NULL
      )
  )
  AND NOT (
      job_state IS NOT NULL
      AND EXISTS (SELECT 1 FROM jobs j WHERE j.job_id = t.job_id)
      AND NOT EXISTS (SELECT 1 FROM events n WHERE n.job_id = t.job_id AND n.seq > t.seq AND n.job_state IS NOT NULL)
  )
ORDER BY seq LIMIT :limit;

-- name: first_events_from
SELECT seq, at FROM events WHERE seq >= :seq ORDER BY seq LIMIT 1;

-- name: last_event
SELECT seq, at FROM events ORDER BY seq DESC LIMIT 1;

-- name: old_runs
SELECT profile_id, token FROM runs
WHERE job_id IS NULL AND ended_at < :before AND NOT unresolved ORDER BY ended_at LIMIT :limit;

-- name: old_deliveries
SELECT seq, ended_at FROM deliveries WHERE ended_at < :before ORDER BY ended_at LIMIT :limit;

-- name: due_deliveries_of
SELECT delivery_id FROM deliveries
WHERE ended_at IS NULL AND host = :host AND due_at <= :now
ORDER BY due_at, seq LIMIT :limit;

-- name: count_deliveries
SELECT state, count(*) AS deliveries, min(due_at) AS due_at, max(attempted_at) AS tried_at
FROM deliveries WHERE state <> 'delivered' GROUP BY state;

-- name: deliveries_of
SELECT * FROM deliveries WHERE job_id = :job_id ORDER BY seq DESC LIMIT :limit;

-- name: tasks_that_wait
SELECT DISTINCT j.pool, j.task FROM jobs j
JOIN tasks t ON t.pool = j.pool AND t.task = j.task
WHERE j.state = 'blocked' AND j.blocked_reason = 'blocked_by_no_worker'
LIMIT :limit;

-- name: token_by_id
SELECT * FROM tokens WHERE token_id = :token_id;

-- name: secrets_by_name
SELECT * FROM secrets WHERE name IN :names[] ORDER BY name;

-- name: secrets_of_lease
SELECT s.* FROM runs r
JOIN proxies x ON x.proxy_id = r.proxy_id
JOIN secrets s ON x.credentials = 'secret:' || s.name
WHERE r.profile_id = :profile_id AND r.token = :token;

-- name: job_of_lease
SELECT j.* FROM runs r
JOIN jobs j ON j.job_id = r.job_id
WHERE r.profile_id = :profile_id AND r.token = :token;

-- name: proxies_with_credentials
SELECT proxy_id FROM proxies WHERE credentials = :credentials ORDER BY proxy_id LIMIT :limit;

-- name: all_endpoints
SELECT * FROM endpoints ORDER BY endpoint_id;

-- name: open_reviews_about
SELECT target, subject FROM reviews WHERE subject IN :subjects[] AND decided_at IS NULL;

-- name: fleet_settings
SELECT name, value FROM fleet_settings;

-- name: snapshots_among
SELECT * FROM snapshots WHERE profile_id IN :ids[] ORDER BY profile_id, token;

-- name: snapshots_by_id
SELECT * FROM snapshots WHERE snapshot_id IN :ids[];

-- name: newest_snapshots
SELECT s.* FROM lanes l JOIN snapshots s ON s.profile_id = l.profile_id AND s.token = l.snapshot
WHERE l.profile_id IN :ids[];

-- name: lanes_reserved_too_long
SELECT profile_id FROM lanes
WHERE saved AND reserved_for <> '*' AND blocked_by IS NULL AND head_job_id IS NOT NULL
  AND (waiting_at <= :latest OR NOT (head_pool || '/' || head_task || '@' || reserved_for) IN :served[])
ORDER BY waiting_at, profile_id LIMIT :limit;
