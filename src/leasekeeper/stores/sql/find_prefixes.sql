-- Pieces of lists (see finds.sql): filters by the beginning of an id. Each reads at most one page of the index of ids.

-- name: find_account__prefix
AND t.account_id IN (
    SELECT b.account_id FROM accounts b WHERE b.account_id >= :prefix_from AND b.account_id < :prefix_to ORDER BY b.account_id LIMIT :limit
)

-- name: find_proxy__prefix
AND t.proxy_id IN (
    SELECT b.proxy_id FROM proxies b WHERE b.proxy_id >= :prefix_from AND b.proxy_id < :prefix_to ORDER BY b.proxy_id LIMIT :limit
)

-- name: find_profile__prefix
AND t.profile_id IN (
    SELECT b.profile_id FROM profiles b WHERE b.profile_id >= :prefix_from AND b.profile_id < :prefix_to ORDER BY b.profile_id LIMIT :limit
)

-- name: find_lane__prefix
AND t.profile_id IN (
    SELECT b.profile_id FROM lanes b WHERE b.profile_id >= :prefix_from AND b.profile_id < :prefix_to ORDER BY b.profile_id LIMIT :limit
)

-- name: find_job__prefix
AND t.job_id IN (
    SELECT b.job_id FROM jobs b WHERE b.job_id >= :prefix_from AND b.job_id < :prefix_to ORDER BY b.job_id LIMIT :limit
)

-- name: find_lease__prefix
AND t.run_id IN (
    SELECT b.run_id FROM runs b WHERE b.run_id >= :prefix_from AND b.run_id < :prefix_to ORDER BY b.run_id LIMIT :limit
)

-- name: find_review__prefix
AND t.review_id IN (
    SELECT b.review_id FROM reviews b WHERE b.review_id >= :prefix_from AND b.review_id < :prefix_to ORDER BY b.review_id LIMIT :limit
)

-- name: find_note__prefix
AND t.note_id IN (
    SELECT b.note_id FROM notes b WHERE b.note_id >= :prefix_from AND b.note_id < :prefix_to ORDER BY b.note_id LIMIT :limit
)

-- name: find_worker__prefix
AND t.incarnation IN (
    SELECT b.incarnation FROM workers b WHERE b.incarnation >= :prefix_from AND b.incarnation < :prefix_to ORDER BY b.incarnation LIMIT :limit
)

-- name: find_delivery__prefix
AND t.delivery_id IN (
    SELECT b.delivery_id FROM deliveries b WHERE b.delivery_id >= :prefix_from AND b.delivery_id < :prefix_to ORDER BY b.delivery_id LIMIT :limit
)

-- name: find_endpoint__prefix
AND t.endpoint_id IN (
    SELECT b.endpoint_id FROM endpoints b WHERE b.endpoint_id >= :prefix_from AND b.endpoint_id < :prefix_to ORDER BY b.endpoint_id LIMIT :limit
)

-- name: find_token__prefix
AND t.token_id IN (
    SELECT b.token_id FROM tokens b WHERE b.token_id >= :prefix_from AND b.token_id < :prefix_to ORDER BY b.token_id LIMIT :limit
)

-- name: find_schedule__prefix
AND t.schedule_id IN (
    SELECT b.schedule_id FROM schedules b WHERE b.schedule_id >= :prefix_from AND b.schedule_id < :prefix_to ORDER BY b.schedule_id LIMIT :limit
)

-- name: find_schedule_state__prefix
AND t.schedule_id IN (
    SELECT b.schedule_id FROM schedules b WHERE b.schedule_id >= :prefix_from AND b.schedule_id < :prefix_to ORDER BY b.schedule_id LIMIT :limit
)

-- name: find_lease__lease_prefix
AND t.run_id IN (
    SELECT b.run_id FROM runs b
    WHERE b.open AND b.profile_id >= :prefix_from AND b.profile_id < :prefix_to
      AND (CAST(:of_profile AS integer) = 0 OR b.profile_id = :prefix_from)
      AND CAST(b.token AS TEXT) LIKE CAST(:token_prefix AS TEXT)
    ORDER BY b.profile_id, b.token LIMIT :limit
)
