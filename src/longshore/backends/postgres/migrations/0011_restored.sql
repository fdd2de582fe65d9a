-- When a restored copy was noticed, and its event log begun: doctor reports it for a week.
ALTER TABLE {schema}.meta ADD COLUMN restored_at timestamptz;
