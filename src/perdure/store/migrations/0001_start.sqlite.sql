-- Who this store is, and which place its blobs are in.
CREATE TABLE store (one integer PRIMARY KEY DEFAULT 1 CHECK (one = 1), id text NOT NULL, place text NOT NULL DEFAULT '');
INSERT INTO store (id) VALUES (lower(hex(randomblob(16))));

-- A process that writes here. `flush` counts its transactions: a retry that finds its number taken knows it was applied.
-- `silent_since_ms`: since when its event loop has stood still, told with its beat. `about`: its slots and whether its
-- cells are in a sandbox, as JSON.
CREATE TABLE worker (
  id          integer PRIMARY KEY AUTOINCREMENT,
  kind        text NOT NULL CHECK (kind IN ('worker', 'client')),
  name        text NOT NULL,
  queues      text NOT NULL DEFAULT '',
  started_ms  integer NOT NULL,
  beat_ms     integer NOT NULL,
  flush       integer NOT NULL DEFAULT 0,
  idle        integer NOT NULL DEFAULT 0,
  fenced      integer NOT NULL DEFAULT 0,
  silent_since_ms integer,
  about       text
);

-- Served by workers without a gap since `served_ms`, up to `seen_ms`, when that was looked at last.
CREATE TABLE queue (name text PRIMARY KEY, paused integer NOT NULL DEFAULT 0, served_ms integer, seen_ms integer);
-- When a worker that has the pipeline last asked for jobs of the queue.
CREATE TABLE served (
  queue text NOT NULL, pipeline text NOT NULL, seen_ms integer NOT NULL, PRIMARY KEY (queue, pipeline)
) WITHOUT ROWID;
-- How far the turns of a queue have been handed out, see fairness.py.
CREATE TABLE queue_time (queue text PRIMARY KEY, vt real NOT NULL) WITHOUT ROWID;
-- A service that stages need: down or up, since when, why and by whom; probed and ramped if the breaker holds it; and
-- what the fleet knows of it together. `counted` requests since `counted_ms` are on their way into `nominal_per_s`.
CREATE TABLE dependency (
  name          text PRIMARY KEY,
  down_ms       integer,
  reason        text,
  held_by       text,
  probe_at_ms   integer,
  probes        integer NOT NULL DEFAULT 0,
  ramp_per_s    real,
  ramp_ms       integer,
  lent_ms       integer,
  nominal_per_s real,
  counted       integer NOT NULL DEFAULT 0,
  counted_ms    integer,
  tokens        real NOT NULL DEFAULT 10,
  pace          text,
  ramp_good     integer NOT NULL DEFAULT 0,
  ramp_bad      integer NOT NULL DEFAULT 0,
  ramp          text,
  CHECK ((down_ms IS NULL) = (held_by IS NULL)),
  CHECK (ramp_ms IS NULL OR down_ms IS NOT NULL)
);
-- Workers that reported lately, how fast each of them asks the service (NULL: it does not), how many of its requests are
-- not back, and whether its breaker looks.
CREATE TABLE dependency_worker (
  name text NOT NULL, worker integer NOT NULL, seen_ms integer NOT NULL, rate real,
  in_flight integer NOT NULL DEFAULT 0, looking integer NOT NULL DEFAULT 0,
  PRIMARY KEY (name, worker)
) WITHOUT ROWID;
-- Operations on services, for their KPIs; `added_ms` of the latency were spent on retries.
CREATE TABLE retry_metrics (
  api_name text NOT NULL, retry_count integer NOT NULL, success integer NOT NULL, latency_ms integer NOT NULL,
  timestamp integer NOT NULL, added_ms integer NOT NULL
);
CREATE INDEX retry_metrics_time ON retry_metrics (timestamp);
-- A lane is a set of dependencies; a job waits in the lane of its next stage, and claims skip lanes that are down.
-- It has been seen up since `open_ms`.
CREATE TABLE lane (name text PRIMARY KEY, down_ms integer, reason text, open_ms integer);
INSERT INTO lane (name) VALUES ('');
-- Where jobs are claimed from: a job whose flow is missing is never seen. `shift` leads from its time to its queue's;
-- `unserved`: the workers of its queue lack its pipeline, and its time stands still.
CREATE TABLE flow (
  queue text NOT NULL, lane text NOT NULL, pipeline text NOT NULL, shift real NOT NULL DEFAULT 0,
  unserved integer NOT NULL DEFAULT 0,
  PRIMARY KEY (queue, lane, pipeline)
) WITHOUT ROWID;

-- Fairness: the virtual time up to which an organisation's jobs of a rank have been handed out; of a flow that is closed
-- in the flow's own time, else lane and pipeline are ''.
CREATE TABLE turn (
  queue text NOT NULL, org text NOT NULL, lane text NOT NULL, pipeline text NOT NULL, rank integer NOT NULL, vt real NOT NULL,
  PRIMARY KEY (queue, org, lane, pipeline, rank)
) WITHOUT ROWID;
CREATE INDEX turn_latest ON turn (queue, vt) WHERE lane = '' AND pipeline = '';
CREATE TABLE org (name text PRIMARY KEY, weight real NOT NULL DEFAULT 1 CHECK (weight > 0));

-- Limits per key; jobs over one are `parked` and let in as room appears.
CREATE TABLE slot (
  key           text PRIMARY KEY,
  concurrency   integer CHECK (concurrency > 0),
  rate_per_s    real CHECK (rate_per_s > 0),
  credit        real NOT NULL DEFAULT 1,
  credit_ms     integer NOT NULL DEFAULT 0,
  had           text
);

-- From `stage` to `beat_ms`: as its job ended, whose row is pruned.
CREATE TABLE document (
  org           text NOT NULL,
  id            text NOT NULL,
  collection    text NOT NULL,
  pipeline      text NOT NULL,
  kind          text NOT NULL,
  name          text NOT NULL,
  media_type    text NOT NULL,
  content_hash  text NOT NULL,
  size          integer NOT NULL,
  inline        blob,
  blob          text,
  meta          blob NOT NULL,
  dedupe        text,
  parent_id     text,
  state         text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done', 'dead', 'cancelled')),
  generation    integer NOT NULL DEFAULT 1,
  degraded      integer NOT NULL DEFAULT 0,
  stage         text,
  attempts      integer,
  attempts_max  integer,
  claims        integer,
  beat_ms       integer,
  error_code    text,
  error_message text,
  error_meta    text,
  created_ms    integer NOT NULL,
  finished_ms   integer,
  PRIMARY KEY (org, id),
  CHECK ((state = 'open') = (finished_ms IS NULL)),
  CHECK ((state IN ('dead', 'cancelled')) = (error_code IS NOT NULL))
);
CREATE UNIQUE INDEX document_dedupe ON document (org, pipeline, dedupe) WHERE dedupe IS NOT NULL;
CREATE INDEX document_failed ON document (state, created_ms, id) WHERE error_code IS NOT NULL;
CREATE INDEX document_created ON document (org, created_ms, id);
CREATE INDEX document_collection ON document (org, collection, created_ms, id);
CREATE INDEX document_finished ON document (org, finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX document_parent ON document (org, parent_id, state) WHERE parent_id IS NOT NULL;
CREATE INDEX document_blob ON document (blob) WHERE blob IS NOT NULL;

CREATE TABLE job (
  id            integer PRIMARY KEY AUTOINCREMENT,
  org           text NOT NULL,
  key           text NOT NULL,
  document_id   text NOT NULL,
  pipeline      text NOT NULL,
  queue         text NOT NULL,
  lane          text NOT NULL,
  stage         text NOT NULL,
  state         text NOT NULL CHECK (state IN ('queued', 'running', 'waiting', 'parked', 'done', 'dead', 'cancelled')),
  suspect       integer NOT NULL DEFAULT 0,
  priority      integer NOT NULL DEFAULT 0,
  vt            real NOT NULL DEFAULT 0,
  run_at_ms     integer NOT NULL,
  token         integer,
  worker        integer,
  claimed_ms    integer,
  lease_ms      integer NOT NULL,
  lease_until_ms integer,
  beat_ms       integer,
  progress_ms   integer,
  generation    integer NOT NULL DEFAULT 1,
  attempts      integer NOT NULL DEFAULT 0,
  attempts_max  integer NOT NULL,
  claims        integer NOT NULL DEFAULT 0,
  postpones     integer NOT NULL DEFAULT 0,
  postponed_ms  integer NOT NULL DEFAULT 0,
  flickers      integer NOT NULL DEFAULT 0,
  releases      integer NOT NULL DEFAULT 0,
  crashes       integer NOT NULL DEFAULT 0,
  holds         integer NOT NULL DEFAULT 0,
  policy        text,
  fresh_from    text,
  limit_key     text,
  limit_own     text,
  probe         text,
  home          text,
  home_vt       real,
  remote        text,
  aside_ms      integer,
  requeues      integer NOT NULL DEFAULT 0,
  requeued_ms   integer,
  input         blob,
  created_ms    integer NOT NULL,
  finished_ms   integer,
  UNIQUE (org, document_id, key),
  FOREIGN KEY (org, document_id) REFERENCES document (org, id),
  CHECK ((state = 'running') = (token IS NOT NULL)),
  CHECK ((state IN ('done', 'dead', 'cancelled')) = (finished_ms IS NOT NULL)),
  CHECK (attempts <= attempts_max),
  CHECK ((probe IS NULL) = (home IS NULL))
);
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
  id          integer PRIMARY KEY AUTOINCREMENT,
  event_id    text NOT NULL UNIQUE,
  org         text NOT NULL,
  document_id text NOT NULL,
  name        text NOT NULL,
  payload     text NOT NULL,
  job_id      integer,
  token       integer,
  wait_ms     integer,
  created_ms  integer NOT NULL,
  due_ms      integer NOT NULL,
  tries       integer NOT NULL DEFAULT 0,
  error       text,
  CHECK ((token IS NULL) = (job_id IS NULL) AND (token IS NULL) = (wait_ms IS NULL))
);
CREATE INDEX outbox_due ON outbox (due_ms, id);
CREATE INDEX outbox_document ON outbox (org, document_id, id);

-- What happened to documents, in the order of commits; `change` is only told apart where there are several writers.
CREATE TABLE feed (
  number integer PRIMARY KEY AUTOINCREMENT,
  change integer NOT NULL DEFAULT 0,
  org text NOT NULL, at_ms integer NOT NULL, name text NOT NULL, document_id text NOT NULL, data text NOT NULL
);
CREATE INDEX feed_org ON feed (org, change, number);
CREATE INDEX feed_document ON feed (org, document_id);

-- Who is told of what happens (events of the feed, from `place` on), and every delivery of that.
CREATE TABLE webhook (
  id text PRIMARY KEY, org text NOT NULL, url text NOT NULL, events text NOT NULL, secret text NOT NULL,
  place text NOT NULL, created_ms integer NOT NULL
);
CREATE TABLE delivery (
  id text PRIMARY KEY, webhook text NOT NULL, org text NOT NULL, name text NOT NULL,
  document_id text NOT NULL, body text NOT NULL,
  state text NOT NULL CHECK (state IN ('waiting', 'sent', 'dead')), tries integer NOT NULL DEFAULT 0,
  created_ms integer NOT NULL, due_ms integer NOT NULL, ended_ms integer, status_code integer, error text,
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
  id text PRIMARY KEY, org text NOT NULL, name text NOT NULL, secret text NOT NULL, scopes text NOT NULL,
  created_ms integer NOT NULL, revoked_ms integer, used_ms integer
);

-- Keys under which somebody asked for something: a hash of what, and what was answered. Written with what it asked for.
CREATE TABLE once (
  org text NOT NULL, key text NOT NULL, request text NOT NULL, answer text NOT NULL DEFAULT '[]',
  finished integer NOT NULL DEFAULT 1,
  at_ms integer NOT NULL,
  PRIMARY KEY (org, key)
);
CREATE INDEX once_at ON once (at_ms);

-- Written once, when the claim has ended.
CREATE TABLE attempt (
  org           text NOT NULL,
  document_id   text NOT NULL,
  job_key       text NOT NULL,
  generation    integer NOT NULL,
  claim         integer NOT NULL,
  attempt       integer NOT NULL,
  charged       integer NOT NULL,
  token         integer NOT NULL,
  stage         text NOT NULL,
  worker        integer NOT NULL,
  started_ms    integer NOT NULL,
  ended_ms      integer NOT NULL,
  outcome       text NOT NULL,
  error_type    text,
  error_code    text,
  status_code   integer,
  message       text,
  fingerprint   text,
  delay_ms      integer,
  why           text NOT NULL,
  requests      text,
  traceback     text,
  PRIMARY KEY (org, document_id, job_key, generation, claim)
) WITHOUT ROWID;

-- Dead documents and (`job` is its name) follow-up jobs: what it takes to list them and to group them by cause. Written
-- with their end, gone when they go on.
CREATE TABLE dead (
  org           text NOT NULL,
  document_id   text NOT NULL,
  collection    text NOT NULL,
  pipeline      text NOT NULL,
  queue         text NOT NULL,
  lane          text NOT NULL,
  stage         text NOT NULL,
  error_type    text NOT NULL,
  error_code    text NOT NULL,
  status_code   integer,
  fingerprint   text NOT NULL,
  attempts      integer NOT NULL,
  generation    integer NOT NULL,
  died_ms       integer NOT NULL,
  exhausted     integer NOT NULL DEFAULT 0,
  job           text NOT NULL DEFAULT '',
  message       text,
  PRIMARY KEY (died_ms, org, document_id, job, generation),
  UNIQUE (document_id, org, job, generation)
) WITHOUT ROWID;
-- With all that groups are chosen by, so that they are counted without a look at the rows.
CREATE INDEX dead_group ON dead (fingerprint, died_ms, org, document_id, collection, pipeline, queue, stage, error_type, error_code, job);
CREATE INDEX dead_code ON dead (error_code, died_ms, org, document_id);
CREATE INDEX dead_exhausted ON dead (collection, died_ms) WHERE exhausted;
CREATE INDEX dead_job ON dead (job, died_ms) WHERE job <> '';

-- Checkpoints. Written only together with a change of a job, whose foreign key vouches for the document.
CREATE TABLE saved (
  org text NOT NULL, document_id text NOT NULL, pipeline text NOT NULL, stage text NOT NULL, generation integer NOT NULL,
  version integer NOT NULL, model text, input_hash text NOT NULL, output_hash text NOT NULL,
  size integer NOT NULL, inline blob, blob text, token integer NOT NULL, saved_ms integer NOT NULL, duration_ms integer NOT NULL,
  degraded integer NOT NULL DEFAULT 0,
  PRIMARY KEY (org, document_id, pipeline, stage, generation)
);
CREATE INDEX saved_blob ON saved (blob) WHERE blob IS NOT NULL;
CREATE TABLE item (
  org text NOT NULL, document_id text NOT NULL, pipeline text NOT NULL, stage text NOT NULL, generation integer NOT NULL, key text NOT NULL,
  fingerprint text NOT NULL, size integer NOT NULL, inline blob, blob text, token integer NOT NULL,
  PRIMARY KEY (org, document_id, pipeline, stage, generation, key)
);
CREATE INDEX item_blob ON item (blob) WHERE blob IS NOT NULL;
CREATE TABLE emitted (
  org text NOT NULL, document_id text NOT NULL, name text NOT NULL, key text NOT NULL, data blob NOT NULL,
  pipeline text NOT NULL, stage text NOT NULL, fingerprint text NOT NULL, generation integer NOT NULL, written_ms integer NOT NULL,
  PRIMARY KEY (org, document_id, name, key)
);

-- What is searchable: the chunks of a document, all of one revision. `vector` is what `model` made of the text (float32);
-- `words` are the folded words that are looked up, `scope` the words that stand for organisation, collection and document.
-- In `found` each word begins with that of its organisation, the first 25 characters of the scope: the words of other
-- organisations are never read, and how common a word is there gives it no weight here.
CREATE TABLE chunk (
  num         integer PRIMARY KEY AUTOINCREMENT,
  org         text NOT NULL,
  document_id text NOT NULL,
  id          text NOT NULL,
  position    integer NOT NULL,
  starts      integer NOT NULL,
  ends        integer NOT NULL,
  anchor      text NOT NULL,
  page        integer,
  model       text,
  vector      blob,
  heading     text NOT NULL DEFAULT '',
  text        text NOT NULL,
  scope       text NOT NULL,
  words       text NOT NULL,
  found       text GENERATED ALWAYS AS (
    substr(scope, 1, 25) || replace(words, ' ', ' ' || substr(scope, 1, 25))
  ) VIRTUAL,
  UNIQUE (org, document_id, id),
  CHECK ((model IS NULL) = (vector IS NULL))
);
CREATE VIRTUAL TABLE chunk_text USING fts5(scope, found, content='chunk', content_rowid='num', tokenize='ascii');
-- Chunks of large documents whose words are in the index already, under the number that they will have (`staging.py`).
CREATE TABLE chunk_staged (
  num         integer PRIMARY KEY,
  org         text NOT NULL,
  document_id text NOT NULL,
  id          text NOT NULL,
  staged_ms   integer NOT NULL,
  scope       text NOT NULL,
  words       text NOT NULL,
  found       text GENERATED ALWAYS AS (
    substr(scope, 1, 25) || replace(words, ' ', ' ' || substr(scope, 1, 25))
  ) VIRTUAL,
  UNIQUE (org, document_id, id)
);
CREATE INDEX chunk_staged_ms ON chunk_staged (staged_ms);
CREATE TRIGGER chunk_staged_added AFTER INSERT ON chunk_staged BEGIN
  INSERT INTO chunk_text (rowid, scope, found) VALUES (new.num, new.scope, new.found);
END;
CREATE TRIGGER chunk_staged_dropped AFTER DELETE ON chunk_staged
WHEN NOT EXISTS (SELECT 1 FROM chunk WHERE num = old.num) BEGIN
  INSERT INTO chunk_text (chunk_text, rowid, scope, found) VALUES ('delete', old.num, old.scope, old.found);
END;
CREATE TRIGGER chunk_added AFTER INSERT ON chunk
WHEN NOT EXISTS (SELECT 1 FROM chunk_staged WHERE num = new.num) BEGIN
  INSERT INTO chunk_text (rowid, scope, found) VALUES (new.num, new.scope, new.found);
END;
CREATE TRIGGER chunk_dropped AFTER DELETE ON chunk BEGIN
  INSERT INTO chunk_text (chunk_text, rowid, scope, found) VALUES ('delete', old.num, old.scope, old.found);
END;
CREATE TRIGGER chunk_changed AFTER UPDATE OF scope, words ON chunk WHEN old.scope <> new.scope OR old.words <> new.words BEGIN
  INSERT INTO chunk_text (chunk_text, rowid, scope, found) VALUES ('delete', old.num, old.scope, old.found);
  INSERT INTO chunk_text (rowid, scope, found) VALUES (new.num, new.scope, new.found);
END;
-- Documents that have chunks: which revision of them, and how many there should be. Whoever keeps a copy reads what has a
-- `change` that is not below the mark of his last look.
CREATE TABLE indexed (
  org text NOT NULL, document_id text NOT NULL, revision text NOT NULL DEFAULT '', expected integer NOT NULL DEFAULT 0,
  change integer NOT NULL DEFAULT 0, saved_ms integer NOT NULL DEFAULT 0, generation integer NOT NULL DEFAULT 0,
  PRIMARY KEY (org, document_id)
) WITHOUT ROWID;
CREATE INDEX indexed_change ON indexed (org, change);
-- Rows of purged documents stay and have no chunks: a count of chunks does not read them.
CREATE INDEX indexed_size ON indexed (org, document_id, expected) WHERE expected > 0;
-- Chunks of different documents that are about the same. No foreign keys: either side may be superseded at any time, and
-- what leads to a chunk that is not there is never shown.
CREATE TABLE connection (
  org text NOT NULL, document_id text NOT NULL, chunk_id text NOT NULL, other_document_id text NOT NULL,
  other_id text NOT NULL, score real NOT NULL, model text NOT NULL,
  PRIMARY KEY (org, document_id, chunk_id, other_document_id, other_id)
) WITHOUT ROWID;
CREATE INDEX connection_other ON connection (org, other_document_id, other_id, score, model);

-- What operators did.
CREATE TABLE act (
  id integer PRIMARY KEY AUTOINCREMENT,
  at_ms integer NOT NULL, who text NOT NULL, verb text NOT NULL, org text, target text NOT NULL, reason text NOT NULL,
  flush text  -- client and number of the flush that it was part of: its answer is found by this
);
CREATE INDEX act_target ON act (target, id);
-- What processes that nobody scrapes have counted, added up: a metric's name and labels as JSON.
CREATE TABLE metric (name text PRIMARY KEY, value real NOT NULL);
CREATE TABLE tally (name text PRIMARY KEY, value integer NOT NULL);
-- What the stuck sweeps counted since the store was made, by collection, status or type of error; and what the last one
-- found (`stuck`, `starved`, `last`).
CREATE TABLE retry_job (name text NOT NULL, label text NOT NULL, value integer NOT NULL, PRIMARY KEY (name, label)) WITHOUT ROWID;
-- Whoever may delete chunks says so before; what goes without is counted as a loss.
CREATE TRIGGER chunk_lost AFTER DELETE ON chunk
WHEN coalesce((SELECT value FROM tally WHERE name = 'chunks_go'), 0) = 0 BEGIN
  INSERT INTO tally (name, value) VALUES ('chunks_lost', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1;
END;

-- How many there are, counted by whoever changes it: see counting.py. Client 0 is nobody.
CREATE TABLE counter (
  client integer NOT NULL, subject text NOT NULL, org text NOT NULL, place text NOT NULL, lane text NOT NULL,
  state text NOT NULL, n integer NOT NULL,
  PRIMARY KEY (client, subject, org, place, lane, state)
) WITHOUT ROWID;
