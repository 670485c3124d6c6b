-- Schema 13. Jobs that wait in their lane and do not want to wait while another run has their profile.
CREATE INDEX jobs_impatient ON jobs (profile_id, priority DESC, seq)
    WHERE state = 'queued' AND on_conflict <> 'wait' AND NOT approved;
