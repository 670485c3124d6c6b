-- Schema 19. Whether a job runs in its profile, or in a throwaway copy of it.
ALTER TABLE jobs ADD COLUMN session_mode TEXT NOT NULL DEFAULT 'persistent';
