-- The last write of every transaction: a name that only it knows, in place of the one its connection wrote before.

-- name: mark_commit
INSERT INTO commits (nonce) VALUES (:nonce);

-- name: unmark_commit
DELETE FROM commits WHERE nonce = :nonce;
