-- Pieces of lists of snapshots (see finds.sql).

-- name: find_snapshot
SELECT * FROM snapshots t WHERE TRUE

-- name: find_snapshot__after
AND t.snapshot_id < :after

-- name: find_snapshot__order
ORDER BY t.snapshot_id DESC LIMIT :limit

-- name: find_snapshot__snapshot_id
AND t.snapshot_id = :snapshot_id

-- name: find_snapshot__profile_id
AND t.profile_id = :profile_id

-- name: find_snapshot__account_id
AND t.account_id = :account_id

-- name: find_snapshot__run_id
AND t.run_id = :run_id

-- name: find_snapshot__verdict
AND t.verdict = :verdict

-- name: find_snapshot__discarded
AND t.discarded_at IS NOT NULL

-- name: find_snapshot__kept
AND t.discarded_at IS NULL

-- name: find_snapshot__prefix
AND t.snapshot_id IN (
    SELECT b.snapshot_id FROM snapshots b WHERE b.snapshot_id >= :prefix_from AND b.snapshot_id < :prefix_to ORDER BY b.snapshot_id LIMIT :limit
)
