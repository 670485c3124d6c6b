-- Schema 21. Free profiles by how long they have rested, for whoever wants any of a pool.
CREATE INDEX lanes_rested ON lanes (state_at, profile_id) WHERE state = 'available' AND hold IS NULL;
