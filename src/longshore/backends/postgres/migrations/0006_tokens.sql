-- Who may call a server, what for and until when. Of a secret only its hash is kept.
CREATE TABLE {schema}.api_tokens (
    id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    hash text NOT NULL,
    scopes text NOT NULL,
    queues text,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    last_used_at bigint
);
