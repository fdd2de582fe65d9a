-- Slots of keys that jobs left when they completed, until whoever uses the queue's slots next takes it back: who settles
-- changes no key, and so waits for nobody who claims.
CREATE TABLE {schema}.released_slots (
    number bigint GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    keys text[] COLLATE "C" NOT NULL,
    jobs bigint[] NOT NULL,
    PRIMARY KEY (queue, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
