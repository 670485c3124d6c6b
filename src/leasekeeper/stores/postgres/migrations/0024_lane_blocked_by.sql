-- Schema 24. What blocks a lane is called so: `hold` also meant what a lease holder does.
ALTER TABLE lanes RENAME COLUMN hold TO blocked_by;
