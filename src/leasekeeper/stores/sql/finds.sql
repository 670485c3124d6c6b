-- Lists. The statement of a list joins named pieces of this file: its base statement, the clause of each filter in use,
-- the clause that continues a page, and its order.

-- name: find_account
SELECT * FROM accounts t WHERE TRUE

-- name: find_account__after
AND t.account_id > :after

-- name: find_account__order
ORDER BY t.account_id LIMIT :limit

-- name: find_account__account_id
AND t.account_id = :account_id

-- name: find_account__paused
AND t.paused = :paused

-- name: find_account__ban_status
AND t.ban_status = :ban_status

-- name: find_profile
SELECT * FROM profiles t WHERE TRUE

-- name: find_profile__after
AND t.profile_id > :after

-- name: find_profile__order
ORDER BY t.profile_id LIMIT :limit

-- name: find_profile__profile_id
AND t.profile_id = :profile_id

-- name: find_profile__account_id
AND t.account_id = :account_id

-- name: find_profile__pool
AND t.pool = :pool

-- name: find_profile__tier
AND t.tier = :tier

-- name: find_lane
SELECT * FROM lanes t WHERE TRUE

-- name: find_lane__after
AND t.profile_id > :after

-- name: find_lane__order
ORDER BY t.profile_id LIMIT :limit

-- name: find_lane__profile_id
AND t.profile_id = :profile_id

-- name: find_lane__account_id
AND t.profile_id IN (SELECT p.profile_id FROM profiles p WHERE p.account_id = :account_id)

-- name: find_lane__account_prefix
AND t.profile_id IN (SELECT p.profile_id FROM profiles p WHERE p.account_id >= :account_from AND p.account_id < :account_to)

-- name: find_lane__pool
AND EXISTS (SELECT 1 FROM profiles p WHERE p.profile_id = t.profile_id AND p.pool = :pool)

-- name: find_lane__tier
AND t.tier = :tier

-- name: find_lane__ban_status
AND t.ban_status = :ban_status

-- name: find_lane__home
AND t.home = :home

-- name: find_lane__state
AND t.state = :state

-- name: find_lane__state_cause
AND t.state_cause = :state_cause

-- name: find_proxy
SELECT * FROM proxies t WHERE TRUE

-- name: find_proxy__after
AND t.proxy_id > :after

-- name: find_proxy__order
ORDER BY t.proxy_id LIMIT :limit

-- name: find_proxy__trouble
AND t.trouble IS NOT NULL

-- name: find_proxy__well
AND t.trouble IS NULL

-- name: find_proxy__proxy_id
AND t.proxy_id = :proxy_id

-- name: find_launcher
SELECT * FROM launchers t WHERE TRUE

-- name: find_launcher__after
AND t.launcher_id > :after

-- name: find_launcher__order
ORDER BY t.launcher_id LIMIT :limit

-- name: find_launcher__launcher_id
AND t.launcher_id = :launcher_id

-- name: find_limit
SELECT * FROM limits t WHERE TRUE

-- name: find_limit__after
AND t.pool > :after

-- name: find_limit__order
ORDER BY t.pool LIMIT :limit

-- name: find_limit__pool
AND t.pool = :pool

-- name: find_job
SELECT * FROM (
    SELECT j.*,
           l.blocked_by,
           CASE WHEN CAST(:all_paused AS integer) = 1 OR j.pool IN :paused[] THEN 1 ELSE 0 END AS pool_paused,
           CASE WHEN j.pool IN :full[] THEN 1 ELSE 0 END AS pool_full,
           CASE WHEN (j.pool || '/' || j.task) IN :gone[] OR j.profile_id IN :newer[] THEN 1 ELSE 0 END AS no_worker,
           CASE WHEN j.profile_id IN :newer[] THEN l.engine END AS newer_engine,
           CASE WHEN l.home <> '' AND NOT (l.saved OR (j.pool || '/' || j.task || '@' || l.home) IN :served[]) THEN 1 ELSE 0 END AS away,
           coalesce(l.home, '') AS home
    FROM jobs j LEFT JOIN lanes l ON l.profile_id = j.profile_id
) t WHERE TRUE

-- name: find_job__among
AND t.job_id IN :ids[]

-- name: find_job__after
AND t.seq < :after

-- name: find_job__order
ORDER BY t.seq DESC LIMIT :limit

-- name: find_job__job_id
AND t.job_id = :job_id

-- name: find_job__account_id
AND t.account_id = :account_id AND t.profile_id IN (
    SELECT p.profile_id FROM profiles p WHERE p.account_id = :account_id
    UNION ALL
    SELECT r.profile_id FROM retired_lanes r WHERE r.account_id = :account_id
)

-- name: find_job__profile_id
AND t.profile_id = :profile_id

-- name: find_job__task
AND t.task = :task

-- name: find_job__pool
AND t.pool = :pool

-- name: find_job__idempotency_key
AND t.idempotency_key = :idempotency_key

-- name: find_job__run_id
AND t.run_id = :run_id AND t.job_id = (SELECT r.job_id FROM runs r WHERE r.run_id = :run_id)

-- name: find_job__dropped
AND t.dropped = :dropped

-- name: find_job__state
AND t.state = :state AND t.state <> 'queued' AND t.state <> 'blocked' AND t.state <> 'running'

-- name: find_job__state_running
AND t.state = 'running' AND t.job_id IN (SELECT r.job_id FROM runs r WHERE r.open)

-- name: find_job__state_queued
-- Filters by the facts that block a job, not by the shown reason: a page may have to skip many waiting jobs.
AND t.state IN ('queued', 'blocked') AND t.state <> 'blocked'
AND NOT (CAST(:unserved AS integer) = 1 AND ((t.pool || '/' || t.task) IN :gone[] OR t.profile_id IN :newer[]))
AND NOT t.pool IN :full[]
AND NOT (CAST(:all_paused AS integer) = 1 OR t.pool IN :paused[])
AND NOT t.profile_id IN (SELECT h.profile_id FROM lanes h WHERE h.blocked_by IS NOT NULL)
AND t.away = 0

-- name: find_job__state_blocked
AND t.state IN ('queued', 'blocked') AND (
    t.state = 'blocked'
    OR (CAST(:unserved AS integer) = 1 AND ((t.pool || '/' || t.task) IN :gone[] OR t.profile_id IN :newer[]))
    OR t.pool IN :full[]
    OR CAST(:all_paused AS integer) = 1 OR t.pool IN :paused[]
    OR t.profile_id IN (SELECT h.profile_id FROM lanes h WHERE h.blocked_by IS NOT NULL)
    OR t.away = 1
)

-- name: find_job__blocked_reason
AND (
    (t.state = 'blocked' AND t.blocked_reason = :blocked_reason)
    OR (
        t.state = 'queued'
        AND coalesce(t.blocked_by, '') = :want_blocked_by
        AND CAST(:want_paused AS integer) IN (t.pool_paused, -1)
        AND CAST(:want_full AS integer) IN (t.pool_full, -1)
        AND CAST(:want_unserved AS integer) IN (t.no_worker, -1)
        AND CAST(:want_away AS integer) IN (t.away, -1)
    )
)

-- name: find_lease
SELECT * FROM runs t WHERE TRUE

-- name: find_lease__after
AND t.run_id < :after

-- name: find_lease__order
ORDER BY t.run_id DESC LIMIT :limit

-- name: find_lease__status
AND t.status = :status

-- name: find_lease__live
AND t.ended_at IS NULL AND t.run_id IN (SELECT r.run_id FROM runs r WHERE r.open)

-- name: find_lease__open
AND t.run_id IN (SELECT r.run_id FROM runs r WHERE r.open)

-- name: find_lease__failed
AND t.result <> 'completed' AND t.result <> 'started'

-- name: find_lease__lost
AND t.status <> 'running' AND t.status <> 'releasing' AND t.status <> 'released'

-- name: find_lease__ended
AND t.ended_at IS NOT NULL

-- name: find_lease__lease_id
AND t.profile_id = :lease_profile AND t.token = :lease_token

-- name: find_lease__profile_id
AND t.profile_id = :profile_id

-- name: find_lease__account_id
AND t.account_id = :account_id AND t.profile_id IN (
    SELECT p.profile_id FROM profiles p WHERE p.account_id = :account_id
    UNION ALL
    SELECT r.profile_id FROM retired_lanes r WHERE r.account_id = :account_id
)

-- name: find_lease__job_id
AND t.profile_id = (SELECT j.profile_id FROM jobs j WHERE j.job_id = :job_id) AND t.job_id = :job_id

-- name: find_lease__run_id
AND t.run_id = :run_id

-- name: find_lease__worker_id
AND t.worker_id = :worker_id

-- name: find_lease__pool
AND t.pool = :pool

-- name: find_lease__result
AND t.result = :result

-- name: find_lease__stop_reason
AND t.stop_reason = :stop_reason

-- name: find_lease__task
AND t.task = :task

-- name: find_event
SELECT * FROM events t WHERE TRUE

-- name: find_event__after
AND t.seq < :after

-- name: find_event__since
AND t.seq > :since

-- name: find_event__order
ORDER BY t.seq DESC LIMIT :limit

-- name: find_event__type
AND t.type = :type

-- name: find_event__notable
AND t.type <> 'job_submitted' AND t.type <> 'lease_granted' AND t.type <> 'run_settled'
AND t.type <> 'checkpoint_saved' AND t.type <> 'job_due'

-- name: find_event__account_id
AND t.account_id = :account_id

-- name: find_event__profile_id
AND t.profile_id = :profile_id

-- name: find_event__job_id
AND t.job_id = :job_id

-- name: find_event__run_id
AND t.run_id = :run_id

-- name: find_event__of_run
-- A run's events are among those of its profile, except conflicts in which it blocks a job of another profile.
AND t.seq IN (
    SELECT e.seq FROM events e WHERE e.profile_id = :run_profile AND e.run_id = :run_id
    UNION ALL
    SELECT e.seq FROM events e
    WHERE e.type = 'profile_lock_conflict' AND e.run_id = :run_id AND e.type <> 'job_submitted'
      AND e.type <> 'lease_granted' AND e.type <> 'run_settled' AND e.type <> 'checkpoint_saved' AND e.type <> 'job_due'
)

-- name: find_event__worker_id
AND t.worker_id = :worker_id

-- name: find_review
SELECT * FROM reviews t WHERE TRUE

-- name: find_review__after
AND t.review_id < :after

-- name: find_review__order
ORDER BY t.review_id DESC LIMIT :limit

-- name: find_review__review_id
AND t.review_id = :review_id

-- name: find_review__open
AND t.decided_at IS NULL

-- name: find_review__decided
AND t.decided_at IS NOT NULL

-- name: find_review__target
AND t.target = :target

-- name: find_review__reason
AND t.reason = :reason

-- name: find_review__account_id
AND t.account_id = :account_id

-- name: find_review__profile_id
AND t.profile_id = :profile_id

-- name: find_review__pool
AND EXISTS (SELECT 1 FROM profiles p WHERE p.profile_id = t.profile_id AND p.pool = :pool)

-- name: find_review__job_id
AND t.job_id = :job_id

-- name: find_note
SELECT * FROM notes t WHERE TRUE

-- name: find_note__after
AND t.note_id < :after

-- name: find_note__order
ORDER BY t.note_id DESC LIMIT :limit

-- name: find_note__note_id
AND t.note_id = :note_id

-- name: find_note__about
AND t.about = :about

-- name: find_note__account_id
AND t.account_id = :account_id

-- name: find_note__profile_id
AND t.profile_id = :profile_id

-- name: find_note__job_id
AND t.job_id = :job_id

-- name: find_note__run_id
AND t.run_id = :run_id

-- name: find_worker
SELECT * FROM workers t WHERE TRUE

-- name: find_worker__after
AND (t.started_at, t.incarnation) < (SELECT a.started_at, a.incarnation FROM workers a WHERE a.incarnation = :after)

-- name: find_worker__order
ORDER BY t.started_at DESC, t.incarnation DESC LIMIT :limit

-- name: find_worker__incarnation
AND t.incarnation = :incarnation

-- name: find_worker__worker_id
AND t.worker_id = :worker_id

-- name: find_worker__pool
AND t.pool = :pool

-- name: find_delivery
SELECT * FROM deliveries t WHERE TRUE

-- name: find_delivery__after
AND t.seq < :after

-- name: find_delivery__order
ORDER BY t.seq DESC LIMIT :limit

-- name: find_delivery__delivery_id
AND t.delivery_id = :delivery_id

-- name: find_delivery__job_id
AND t.job_id = :job_id

-- name: find_delivery__host
-- With or without its port.
AND (t.host = CAST(:host AS TEXT) OR substr(t.host, 1, length(CAST(:host AS TEXT)) + 1) = CAST(:host AS TEXT) || ':')

-- name: find_delivery__state
AND t.state = :state

-- name: find_delivery__undelivered
AND t.state <> 'delivered'

-- name: find_delivery__endpoint_id
AND t.endpoint_id = :endpoint_id

-- name: find_endpoint
SELECT * FROM endpoints t WHERE TRUE

-- name: find_endpoint__after
AND t.endpoint_id > :after

-- name: find_endpoint__order
ORDER BY t.endpoint_id LIMIT :limit

-- name: find_endpoint__endpoint_id
AND t.endpoint_id = :endpoint_id

-- name: find_endpoint__state
AND t.state = :state

-- name: find_token
SELECT token_id, name, scopes, accounts, pools, created_at, created_by, expires_at, used_at, revoked_at
FROM tokens t WHERE TRUE

-- name: find_token__after
AND (t.created_at, t.token_id) < (SELECT a.created_at, a.token_id FROM tokens a WHERE a.token_id = :after)

-- name: find_token__order
ORDER BY t.created_at DESC, t.token_id DESC LIMIT :limit

-- name: find_token__token_id
AND t.token_id = :token_id

-- name: find_token__name
AND t.name = :name

-- name: find_secret
SELECT name, key_id, version, created_at, updated_at, updated_by FROM secrets t WHERE TRUE

-- name: find_secret__after
AND t.name > :after

-- name: find_secret__order
ORDER BY t.name LIMIT :limit

-- name: find_secret__name
AND t.name = :name

-- name: find_secret__key_id
AND t.key_id = :key_id

-- name: find_pause
SELECT * FROM pauses t WHERE TRUE

-- name: find_pause__after
AND t.pause_id > :after

-- name: find_pause__order
ORDER BY t.pause_id LIMIT :limit

-- name: find_pause__pause_id
AND t.pause_id = :pause_id

-- name: find_lane__saved
AND t.saved

-- name: find_lane__unsaved
AND NOT t.saved AND t.unsaved_reason <> ''
