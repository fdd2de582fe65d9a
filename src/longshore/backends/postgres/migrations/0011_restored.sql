-- When a restored copy was detected and a new event log was started. doctor reports it for a week.
ALTER TABLE {schema}.meta ADD COLUMN restored_at timestamptz;
