-- What is looked up or sorted by is compared byte by byte (COLLATE "C"), as on SQLite, and faster than by a language.

-- The store's time. clock_timestamp, not now(): a lease counts from the write, not from the start of its transaction.
CREATE FUNCTION perdure_now() RETURNS bigint LANGUAGE sql VOLATILE
  AS $$ SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) $$;

-- Who this store is, and which place its blobs are in.
CREATE TABLE store (one int PRIMARY KEY DEFAULT 1 CHECK (one = 1), id text NOT NULL, place text NOT NULL DEFAULT '');
INSERT INTO store (id) VALUES (replace(CAST(gen_random_uuid() AS text), '-', ''));

-- A process that writes here. `flush` counts its transactions: a retry that finds its number taken knows it was applied.
-- `silent_since_ms`: since when its event loop has stood still, told with its beat. `about`: its slots and whether its
-- cells are in a sandbox, as JSON.
CREATE TABLE worker (
  id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind        text NOT NULL CHECK (kind IN ('worker', 'client')),
  name        text NOT NULL,
  queues      text NOT NULL DEFAULT '',
  started_ms  bigint NOT NULL,
  beat_ms     bigint NOT NULL,
  flush       bigint NOT NULL DEFAULT 0,
  idle        boolean NOT NULL DEFAULT false,
  fenced      bigint NOT NULL DEFAULT 0,
  silent_since_ms bigint,
  about       text
);

-- Served by workers without a gap since `served_ms`, up to `seen_ms`, when that was looked at last.
CREATE TABLE queue (name text COLLATE "C" PRIMARY KEY, paused boolean NOT NULL DEFAULT false, served_ms bigint, seen_ms bigint);
-- When a worker that has the pipeline last asked for jobs of the queue.
CREATE TABLE served (
  queue text COLLATE "C" NOT NULL, pipeline text COLLATE "C" NOT NULL, seen_ms bigint NOT NULL, PRIMARY KEY (queue, pipeline)
);
-- How far the turns of a queue have been handed out, see fairness.py.
CREATE TABLE queue_time (queue text COLLATE "C" PRIMARY KEY, vt double precision NOT NULL);
-- A service that stages need: down or up, since when, why and by whom; probed and ramped if the breaker holds it; and
-- what the fleet knows of it together. `counted` requests since `counted_ms` are on their way into `nominal_per_s`.
CREATE TABLE dependency (
  name          text COLLATE "C" PRIMARY KEY,
  down_ms       bigint,
  reason        text,
  held_by       text,
  probe_at_ms   bigint,
  probes        int NOT NULL DEFAULT 0,
  ramp_per_s    double precision,
  ramp_ms       bigint,
  lent_ms       bigint,
  nominal_per_s double precision,
  counted       bigint NOT NULL DEFAULT 0,
  counted_ms    bigint,
  tokens        double precision NOT NULL DEFAULT 10,
  pace          text,
  ramp_good     int NOT NULL DEFAULT 0,
  ramp_bad      int NOT NULL DEFAULT 0,
  ramp          text,
  CHECK ((down_ms IS NULL) = (held_by IS NULL)),
  CHECK (ramp_ms IS NULL OR down_ms IS NOT NULL)
);
-- Workers that reported lately, how fast each of them asks the service (NULL: it does not), how many of its requests are
-- not back, and whether its breaker looks.
CREATE TABLE dependency_worker (
  name text COLLATE "C" NOT NULL, worker int NOT NULL, seen_ms bigint NOT NULL, rate double precision,
  in_flight int NOT NULL DEFAULT 0, looking boolean NOT NULL DEFAULT false,
  PRIMARY KEY (name, worker)
);
-- Operations on services, for their KPIs; `added_ms` of the latency were spent on retries.
CREATE TABLE retry_metrics (
  api_name text COLLATE "C" NOT NULL, retry_count int NOT NULL, success boolean NOT NULL, latency_ms bigint NOT NULL,
  timestamp bigint NOT NULL, added_ms bigint NOT NULL
);
CREATE INDEX retry_metrics_time ON retry_metrics (timestamp);
-- A lane is a set of dependencies; a job waits in the lane of its next stage, and claims skip lanes that are down.
-- It has been seen up since `open_ms`.
CREATE TABLE lane (name text COLLATE "C" PRIMARY KEY, down_ms bigint, reason text, open_ms bigint);
INSERT INTO lane (name) VALUES ('');
-- Where jobs are claimed from: a job whose flow is missing is never seen. `shift` leads from its time to its queue's;
-- `unserved`: the workers of its queue lack its pipeline, and its time stands still.
CREATE TABLE flow (
  queue text COLLATE "C" NOT NULL, lane text COLLATE "C" NOT NULL, pipeline text COLLATE "C" NOT NULL,
  shift double precision NOT NULL DEFAULT 0, unserved boolean NOT NULL DEFAULT false,
  PRIMARY KEY (queue, lane, pipeline)
);

-- Fairness: the virtual time up to which an organisation's jobs of a rank have been handed out; of a flow that is closed
-- in the flow's own time, else lane and pipeline are ''.
CREATE TABLE turn (
  queue text COLLATE "C" NOT NULL, org text COLLATE "C" NOT NULL, lane text COLLATE "C" NOT NULL, pipeline text COLLATE "C" NOT NULL,
  rank int NOT NULL, vt double precision NOT NULL,
  PRIMARY KEY (queue, org, lane, pipeline, rank)
);
CREATE INDEX turn_latest ON turn (queue, vt) WHERE lane = '' AND pipeline = '';
CREATE TABLE org (name text COLLATE "C" PRIMARY KEY, weight double precision NOT NULL DEFAULT 1 CHECK (weight > 0));

-- Limits per key; jobs over one are `parked` and let in as room appears.
CREATE TABLE slot (
  key           text COLLATE "C" PRIMARY KEY,
  concurrency   int CHECK (concurrency > 0),
  rate_per_s    double precision CHECK (rate_per_s > 0),
  credit        double precision NOT NULL DEFAULT 1,
  credit_ms     bigint NOT NULL DEFAULT 0,
  had           text
);

-- From `stage` to `beat_ms`: as its job ended, whose row is pruned.
CREATE TABLE document (
  org           text COLLATE "C" NOT NULL,
  id            text COLLATE "C" NOT NULL,
  collection    text COLLATE "C" NOT NULL,
  pipeline      text COLLATE "C" NOT NULL,
  kind          text NOT NULL,
  name          text NOT NULL,
  media_type    text NOT NULL,
  content_hash  text NOT NULL,
  size          bigint NOT NULL,
  inline        bytea,
  blob          text COLLATE "C",
  meta          bytea NOT NULL,
  dedupe        text COLLATE "C",
  parent_id     text,
  state         text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done', 'dead', 'cancelled')),
  generation    int NOT NULL DEFAULT 1,
  degraded      boolean NOT NULL DEFAULT false,
  stage         text,
  attempts      int,
  attempts_max  int,
  claims        int,
  beat_ms       bigint,
  error_code    text,
  error_message text,
  error_meta    text,
  created_ms    bigint NOT NULL,
  finished_ms   bigint,
  PRIMARY KEY (org, id),
  CHECK ((state = 'open') = (finished_ms IS NULL)),
  CHECK ((state IN ('dead', 'cancelled')) = (error_code IS NOT NULL))
) WITH (fillfactor = 50);  -- its end is written beside it, on the same page
CREATE UNIQUE INDEX document_dedupe ON document (org, pipeline, dedupe) WHERE dedupe IS NOT NULL;
CREATE INDEX document_failed ON document (state, created_ms, id) WHERE error_code IS NOT NULL;
CREATE INDEX document_created ON document (org, created_ms, id);
CREATE INDEX document_collection ON document (org, collection, created_ms, id);
CREATE INDEX document_finished ON document (org, finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX document_parent ON document (org, parent_id, state) WHERE parent_id IS NOT NULL;
CREATE INDEX document_blob ON document (blob) WHERE blob IS NOT NULL;

CREATE TABLE job (
  id            bigint GENERATED ALWAYS AS IDENTITY,
  org           text COLLATE "C" NOT NULL,
  key           text COLLATE "C" NOT NULL,
  document_id   text COLLATE "C" NOT NULL,
  pipeline      text COLLATE "C" NOT NULL,
  queue         text COLLATE "C" NOT NULL,
  lane          text COLLATE "C" NOT NULL,
  stage         text NOT NULL,
  state         text NOT NULL CHECK (state IN ('queued', 'running', 'waiting', 'parked', 'done', 'dead', 'cancelled')),
  suspect       boolean NOT NULL DEFAULT false,
  priority      int NOT NULL DEFAULT 0,
  vt            double precision NOT NULL DEFAULT 0,
  run_at_ms     bigint NOT NULL,
  token         bigint,
  worker        int,
  claimed_ms    bigint,
  lease_ms      int NOT NULL,
  lease_until_ms bigint,
  beat_ms       bigint,
  progress_ms   bigint,
  generation    int NOT NULL DEFAULT 1,
  attempts      int NOT NULL DEFAULT 0,
  attempts_max  int NOT NULL,
  claims        int NOT NULL DEFAULT 0,
  postpones     int NOT NULL DEFAULT 0,
  postponed_ms  bigint NOT NULL DEFAULT 0,
  flickers      int NOT NULL DEFAULT 0,
  releases      int NOT NULL DEFAULT 0,
  crashes       int NOT NULL DEFAULT 0,
  holds         int NOT NULL DEFAULT 0,
  policy        text,
  fresh_from    text,
  limit_key     text COLLATE "C",
  limit_own     text COLLATE "C",
  probe         text COLLATE "C",
  home          text COLLATE "C",
  home_vt       double precision,
  remote        text,
  aside_ms      bigint,
  requeues      int NOT NULL DEFAULT 0,
  requeued_ms   bigint,
  input         bytea,
  created_ms    bigint NOT NULL,
  finished_ms   bigint,
  PRIMARY KEY (org, id),
  UNIQUE (org, document_id, key),
  FOREIGN KEY (org, document_id) REFERENCES document (org, id),
  CHECK ((state = 'running') = (token IS NOT NULL)),
  CHECK ((state IN ('done', 'dead', 'cancelled')) = (finished_ms IS NOT NULL)),
  CHECK (attempts <= attempts_max),
  CHECK ((probe IS NULL) = (home IS NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX job_ready ON job (queue, lane, pipeline, suspect, vt, priority DESC, id) WHERE state = 'queued';
CREATE INDEX job_running ON job (worker, id) WHERE state = 'running';
CREATE INDEX job_due ON job (run_at_ms, id) WHERE state = 'waiting';
CREATE INDEX job_parked ON job (queue, lane, pipeline, vt) WHERE state = 'parked';
CREATE INDEX job_limited ON job (limit_key, state, queue, lane, pipeline, vt, priority DESC, id) WHERE limit_key IS NOT NULL AND finished_ms IS NULL;
-- Lent although its lane `home` is down, to find out whether the dependency `probe` is back; `home_vt` is its turn there.
CREATE INDEX job_lent ON job (probe) WHERE probe IS NOT NULL;
CREATE INDEX job_finished ON job (queue, finished_ms) WHERE state IN ('done', 'cancelled');

-- Events that are to be published, written with whatever they tell of; a row goes when the broker has confirmed it. One
-- with a `token` hands a job over to another service: only then does the lease begin, with `wait_ms`.
CREATE TABLE outbox (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id    text COLLATE "C" NOT NULL UNIQUE,
  org         text COLLATE "C" NOT NULL,
  document_id text COLLATE "C" NOT NULL,
  name        text NOT NULL,
  payload     text NOT NULL,
  job_id      bigint,
  token       bigint,
  wait_ms     bigint,
  created_ms  bigint NOT NULL,
  due_ms      bigint NOT NULL,
  tries       int NOT NULL DEFAULT 0,
  error       text,
  CHECK ((token IS NULL) = (job_id IS NULL) AND (token IS NULL) = (wait_ms IS NULL))
);
CREATE INDEX outbox_due ON outbox (due_ms, id);
CREATE INDEX outbox_document ON outbox (org, document_id, id);

-- What happened to documents, in the order of commits: `change` is the number of the transaction.
CREATE TABLE feed (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  change bigint NOT NULL DEFAULT CAST(CAST(pg_current_xact_id() AS text) AS bigint),
  org text COLLATE "C" NOT NULL, at_ms bigint NOT NULL, name text NOT NULL, document_id text COLLATE "C" NOT NULL,
  data text NOT NULL
);
CREATE INDEX feed_org ON feed (org, change, number);
CREATE INDEX feed_document ON feed (org, document_id);

-- Who is told of what happens (events of the feed, from `place` on), and every delivery of that.
CREATE TABLE webhook (
  id text COLLATE "C" PRIMARY KEY, org text COLLATE "C" NOT NULL, url text NOT NULL, events text NOT NULL, secret text NOT NULL,
  place text NOT NULL, created_ms bigint NOT NULL
);
CREATE TABLE delivery (
  id text COLLATE "C" PRIMARY KEY, webhook text COLLATE "C" NOT NULL, org text COLLATE "C" NOT NULL, name text NOT NULL,
  document_id text COLLATE "C" NOT NULL, body text NOT NULL,
  state text NOT NULL CHECK (state IN ('waiting', 'sent', 'dead')), tries int NOT NULL DEFAULT 0,
  created_ms bigint NOT NULL, due_ms bigint NOT NULL, ended_ms bigint, status_code int, error text,
  CHECK ((state = 'waiting') = (ended_ms IS NULL))
);
CREATE INDEX delivery_due ON delivery (webhook, due_ms, id) WHERE state = 'waiting';
CREATE INDEX delivery_order ON delivery (webhook, document_id, id) WHERE state = 'waiting';
CREATE INDEX delivery_org ON delivery (org, id);
CREATE INDEX delivery_dead ON delivery (org) WHERE state = 'dead';
CREATE INDEX delivery_sent ON delivery (ended_ms) WHERE state = 'sent';
CREATE INDEX delivery_document ON delivery (org, document_id) WHERE state = 'sent';

-- Who may use the HTTP API, as whom and for what; `secret` is a hash of it.
CREATE TABLE api_key (
  id text COLLATE "C" PRIMARY KEY, org text COLLATE "C" NOT NULL, name text NOT NULL, secret text NOT NULL, scopes text NOT NULL,
  created_ms bigint NOT NULL, revoked_ms bigint, used_ms bigint
);

-- Keys under which somebody asked for something: a hash of what, and what was answered. Written with what it asked for.
CREATE TABLE once (
  org text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, request text NOT NULL, answer text NOT NULL DEFAULT '[]',
  finished boolean NOT NULL DEFAULT true,
  at_ms bigint NOT NULL,
  PRIMARY KEY (org, key)
);
CREATE INDEX once_at ON once (at_ms);

-- Written once, when the claim has ended.
CREATE TABLE attempt (
  org           text COLLATE "C" NOT NULL,
  document_id   text COLLATE "C" NOT NULL,
  job_key       text COLLATE "C" NOT NULL,
  generation    int NOT NULL,
  claim         int NOT NULL,
  attempt       int NOT NULL,
  charged       boolean NOT NULL,
  token         bigint NOT NULL,
  stage         text NOT NULL,
  worker        int NOT NULL,
  started_ms    bigint NOT NULL,
  ended_ms      bigint NOT NULL,
  outcome       text NOT NULL,
  error_type    text,
  error_code    text,
  status_code   int,
  message       text,
  fingerprint   text,
  delay_ms      bigint,
  why           text NOT NULL,
  requests      text,
  traceback     text,
  PRIMARY KEY (org, document_id, job_key, generation, claim)
);

-- Dead documents and (`job` is its name) follow-up jobs: what it takes to list them and to group them by cause. Written
-- with their end, gone when they go on.
CREATE TABLE dead (
  org           text COLLATE "C" NOT NULL,
  document_id   text COLLATE "C" NOT NULL,
  collection    text COLLATE "C" NOT NULL,
  pipeline      text COLLATE "C" NOT NULL,
  queue         text COLLATE "C" NOT NULL,
  lane          text COLLATE "C" NOT NULL,
  stage         text COLLATE "C" NOT NULL,
  error_type    text COLLATE "C" NOT NULL,
  error_code    text COLLATE "C" NOT NULL,
  status_code   int,
  fingerprint   text COLLATE "C" NOT NULL,
  attempts      int NOT NULL,
  generation    int NOT NULL,
  died_ms       bigint NOT NULL,
  exhausted     boolean NOT NULL DEFAULT false,
  job           text COLLATE "C" NOT NULL DEFAULT '',
  message       text,
  PRIMARY KEY (died_ms, org, document_id, job, generation),
  UNIQUE (document_id, org, job, generation)
);
CREATE INDEX dead_group ON dead (fingerprint, died_ms, org, document_id);
CREATE INDEX dead_code ON dead (error_code, died_ms, org, document_id);
CREATE INDEX dead_exhausted ON dead (collection, died_ms) WHERE exhausted;
CREATE INDEX dead_job ON dead (job, died_ms) WHERE job <> '';

-- Checkpoints. Written only together with a change of a job, whose foreign key vouches for the document.
CREATE TABLE saved (
  org text COLLATE "C" NOT NULL, document_id text COLLATE "C" NOT NULL, pipeline text COLLATE "C" NOT NULL, stage text COLLATE "C" NOT NULL, generation int NOT NULL,
  version int NOT NULL, model text, input_hash text NOT NULL, output_hash text NOT NULL,
  size bigint NOT NULL, inline bytea, blob text COLLATE "C", token bigint NOT NULL, saved_ms bigint NOT NULL, duration_ms bigint NOT NULL,
  degraded boolean NOT NULL DEFAULT FALSE,
  PRIMARY KEY (org, document_id, pipeline, stage, generation)
);
CREATE INDEX saved_blob ON saved (blob) WHERE blob IS NOT NULL;
CREATE TABLE item (
  org text COLLATE "C" NOT NULL, document_id text COLLATE "C" NOT NULL, pipeline text COLLATE "C" NOT NULL, stage text COLLATE "C" NOT NULL, generation int NOT NULL, key text COLLATE "C" NOT NULL,
  fingerprint text NOT NULL, size bigint NOT NULL, inline bytea, blob text COLLATE "C", token bigint NOT NULL,
  PRIMARY KEY (org, document_id, pipeline, stage, generation, key)
);
CREATE INDEX item_blob ON item (blob) WHERE blob IS NOT NULL;
CREATE TABLE emitted (
  org text COLLATE "C" NOT NULL, document_id text COLLATE "C" NOT NULL, name text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL, data bytea NOT NULL,
  pipeline text NOT NULL, stage text NOT NULL, fingerprint text NOT NULL, generation int NOT NULL, written_ms bigint NOT NULL,
  PRIMARY KEY (org, document_id, name, key)
);

-- What is searchable: the chunks of a document, all of one revision. `vector` is what `model` made of the text (float32);
-- `words` are the folded words that are looked up, `scope` the words that stand for organisation, collection and document.
CREATE TABLE chunk (
  num         bigint GENERATED BY DEFAULT AS IDENTITY (SEQUENCE NAME chunk_number) PRIMARY KEY,
  org         text COLLATE "C" NOT NULL,
  document_id text COLLATE "C" NOT NULL,
  id          text COLLATE "C" NOT NULL,
  position    int NOT NULL,
  starts      int NOT NULL,
  ends        int NOT NULL,
  anchor      text NOT NULL,
  page        int,
  model       text COLLATE "C",
  vector      bytea,
  heading     text NOT NULL DEFAULT '',
  text        text NOT NULL,
  scope       text NOT NULL,
  words       text NOT NULL,
  UNIQUE (org, document_id, id),
  CHECK ((model IS NULL) = (vector IS NULL))
);
-- The words of chunks with their places, by the numbers of the chunks; triggers keep it in step with `chunk`.
CREATE TABLE chunk_text (num bigint PRIMARY KEY, found tsvector NOT NULL);
ALTER TABLE chunk_text ALTER found SET STORAGE MAIN;  -- a phrase is looked for in each row that has its words
-- Without a list of what was added lately: a search would read all of it, row by row (2 ms instead of 0.3).
CREATE INDEX chunk_text_found ON chunk_text USING gin (found) WITH (fastupdate = off);
-- Chunks of large documents whose words are in `chunk_text` already, under the number that they will have (`staging.py`).
CREATE TABLE chunk_staged (
  num         bigint PRIMARY KEY DEFAULT nextval('chunk_number'),
  org         text COLLATE "C" NOT NULL,
  document_id text COLLATE "C" NOT NULL,
  id          text COLLATE "C" NOT NULL,
  staged_ms   bigint NOT NULL,
  scope       text NOT NULL,
  words       text NOT NULL,
  model       text COLLATE "C",
  vector      bytea,
  UNIQUE (org, document_id, id)
);
CREATE INDEX chunk_staged_ms ON chunk_staged (staged_ms);
-- A word of a scope has a space in it, which no word of a text has: no text can put a chunk into another's scope.
-- PostgreSQL's own parser of texts would cut words such as 3e5x apart.
CREATE FUNCTION chunk_words(scope text, words text) RETURNS tsvector LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CAST(concat('''in ', replace(scope, ' ', ''' ''in '), ''' ', (
    SELECT string_agg(left(w, 64) || ':' || least(n, 16383), ' ')
    FROM unnest(string_to_array(translate(words, $signs$'\:$signs$, ''), ' ')) WITH ORDINALITY u(w, n) WHERE w <> ''
  )) AS tsvector)
$$;
-- Its plans are kept, and the tables may have been empty when they were made.
CREATE FUNCTION chunk_text_follow() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT SET enable_seqscan = off AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO chunk_text (num, found) SELECT num, chunk_words(scope, words) FROM come
    WHERE TG_TABLE_NAME = 'chunk_staged' OR (SELECT s.num FROM chunk_staged s WHERE s.num = come.num) IS NULL;
  ELSIF TG_OP = 'UPDATE' THEN
    UPDATE chunk_text t SET found = chunk_words(come.scope, come.words) FROM come JOIN gone USING (num)
    WHERE t.num = come.num AND (come.scope, come.words) IS DISTINCT FROM (gone.scope, gone.words);
  ELSE
    DELETE FROM chunk_text t USING gone WHERE t.num = gone.num
    AND (TG_TABLE_NAME = 'chunk' OR (SELECT c.num FROM chunk c WHERE c.num = gone.num) IS NULL);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER chunk_text_come AFTER INSERT ON chunk REFERENCING NEW TABLE AS come
  FOR EACH STATEMENT EXECUTE FUNCTION chunk_text_follow();
CREATE TRIGGER chunk_text_change AFTER UPDATE ON chunk REFERENCING OLD TABLE AS gone NEW TABLE AS come
  FOR EACH STATEMENT EXECUTE FUNCTION chunk_text_follow();
CREATE TRIGGER chunk_text_go AFTER DELETE ON chunk REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION chunk_text_follow();
CREATE TRIGGER chunk_text_come AFTER INSERT ON chunk_staged REFERENCING NEW TABLE AS come
  FOR EACH STATEMENT EXECUTE FUNCTION chunk_text_follow();
CREATE TRIGGER chunk_text_go AFTER DELETE ON chunk_staged REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION chunk_text_follow();
-- Documents that have chunks: which revision of them, and how many there should be. Whoever keeps a copy reads what has a
-- `change` that is not below the mark of his last look.
CREATE TABLE indexed (
  org text COLLATE "C" NOT NULL, document_id text COLLATE "C" NOT NULL, revision text NOT NULL DEFAULT '', expected int NOT NULL DEFAULT 0,
  change bigint NOT NULL DEFAULT 0, saved_ms bigint NOT NULL DEFAULT 0, generation int NOT NULL DEFAULT 0,
  PRIMARY KEY (org, document_id)
);
CREATE INDEX indexed_change ON indexed (org, change);
-- Rows of purged documents stay and have no chunks: a count of chunks does not read them.
CREATE INDEX indexed_size ON indexed (org, document_id, expected) WHERE expected > 0;
-- Chunks of different documents that are about the same. No foreign keys: either side may be superseded at any time, and
-- what leads to a chunk that is not there is never shown.
CREATE TABLE connection (
  org text COLLATE "C" NOT NULL, document_id text COLLATE "C" NOT NULL, chunk_id text COLLATE "C" NOT NULL, other_document_id text COLLATE "C" NOT NULL,
  other_id text COLLATE "C" NOT NULL, score double precision NOT NULL, model text COLLATE "C" NOT NULL,
  PRIMARY KEY (org, document_id, chunk_id, other_document_id, other_id)
);
CREATE INDEX connection_other ON connection (org, other_document_id, other_id, score, model);

-- What operators did.
CREATE TABLE act (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at_ms bigint NOT NULL, who text NOT NULL, verb text NOT NULL, org text, target text NOT NULL, reason text NOT NULL,
  flush text  -- client and number of the flush that it was part of: its answer is found by this
);
CREATE INDEX act_target ON act (target, id);
-- What processes that nobody scrapes have counted, added up: a metric's name and labels as JSON.
CREATE TABLE metric (name text PRIMARY KEY, value double precision NOT NULL);
CREATE TABLE tally (name text PRIMARY KEY, value bigint NOT NULL);
-- What the stuck sweeps counted since the store was made, by collection, status or type of error; and what the last one
-- found (`stuck`, `starved`, `last`).
CREATE TABLE retry_job (name text COLLATE "C" NOT NULL, label text COLLATE "C" NOT NULL, value bigint NOT NULL, PRIMARY KEY (name, label));
-- Whoever may delete chunks says so before; what goes without is counted as a loss.
CREATE FUNCTION chunk_lost() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF coalesce(current_setting('perdure.chunks_go', true), '') = '' THEN
    INSERT INTO tally (name, value) SELECT 'chunks_lost', count(*) FROM gone HAVING count(*) > 0
      ON CONFLICT (name) DO UPDATE SET value = tally.value + excluded.value;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER chunk_lost AFTER DELETE ON chunk REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION chunk_lost();

-- How many there are, counted by whoever changes it: see counting.py. Client 0 is nobody.
CREATE TABLE counter (
  client int NOT NULL, subject text COLLATE "C" NOT NULL, org text COLLATE "C" NOT NULL, place text COLLATE "C" NOT NULL,
  lane text COLLATE "C" NOT NULL, state text COLLATE "C" NOT NULL, n bigint NOT NULL,
  PRIMARY KEY (client, subject, org, place, lane, state)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE blob_head (hash text COLLATE "C" PRIMARY KEY, size bigint NOT NULL, touched_ms bigint NOT NULL);
CREATE TABLE blob_part (hash text COLLATE "C" NOT NULL, part int NOT NULL, data bytea NOT NULL, PRIMARY KEY (hash, part));
-- As it is: to compress a large document takes the server longer than to write it, and most formats are compressed.
ALTER TABLE blob_part ALTER data SET STORAGE EXTERNAL;
