-- Two PostgreSQL roles with the least rights, for the processes of one store (docs/security.md):
--   perdure_worker  for `perdure worker`: reads and writes documents, sees no API key, cannot change webhooks but their place
--   perdure_api     for `perdure serve`:  reads and writes documents and webhooks, reads keys, cannot make or revoke one
-- Neither can create, change or drop a table, nor alter the trail of acts. The owner of the tables migrates and makes keys.
--
-- Run it as the owner (who may create roles) in the database of the store, after `perdure migrate` and `perdure status`
-- (which sets up pgvector where the server has it), and after each later migration:
--   psql "$OWNER_URL" -v ON_ERROR_STOP=1 -f scripts/postgres-roles.sql
-- Then give both a password: \password perdure_worker, \password perdure_api. It can be run again at any time.

DO $$
DECLARE
  here text := current_schema();
BEGIN
  IF to_regclass('migration') IS NULL THEN
    RAISE EXCEPTION 'there is no store in the schema %: run `perdure migrate` first', here;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'perdure_worker') THEN
    CREATE ROLE perdure_worker LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'perdure_api') THEN
    CREATE ROLE perdure_api LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT;
  END IF;

  EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
  EXECUTE format('GRANT CONNECT ON DATABASE %I TO perdure_worker, perdure_api', current_database());
  EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', here);
  EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM perdure_worker, perdure_api', here);
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO perdure_worker, perdure_api', here);
END
$$;

GRANT SELECT ON migration, org TO perdure_worker, perdure_api;
GRANT SELECT, UPDATE (place) ON store TO perdure_worker, perdure_api;
GRANT SELECT, INSERT ON act TO perdure_worker, perdure_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON
  attempt, blob_head, blob_part, chunk, chunk_staged, chunk_text, connection, counter, dead, delivery, dependency,
  dependency_worker, document, emitted, feed, flow, indexed, item, job, lane, metric, once, outbox, queue, queue_time,
  retry_job, retry_metrics, saved, served, slot, tally, turn, worker
TO perdure_worker, perdure_api;
GRANT USAGE ON SEQUENCE chunk_number TO perdure_worker, perdure_api;

GRANT SELECT, UPDATE (place) ON webhook TO perdure_worker;
GRANT SELECT, INSERT, DELETE, UPDATE (place) ON webhook TO perdure_api;
GRANT SELECT, UPDATE (used_ms) ON api_key TO perdure_api;

DO $$
BEGIN
  IF to_regclass('chunk_vector') IS NOT NULL THEN  -- pgvector: triggers write it with the rights of the writer of a chunk
    GRANT SELECT, INSERT, UPDATE, DELETE ON chunk_vector TO perdure_worker, perdure_api;
  END IF;
  IF to_regclass('chunk_vector_whole') IS NOT NULL THEN
    GRANT SELECT ON chunk_vector_whole TO perdure_worker, perdure_api;
  END IF;
END
$$;
