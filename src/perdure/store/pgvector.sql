-- Vectors as pgvector searches them: of length 1, beside the chunks whose bytes they are made of. Run in one transaction.
-- {ours} is the schema of the table chunk, {theirs} that of the extension; nothing here depends on a search_path.

-- Whoever is writing chunks comes to an end first, and whoever writes later meets the triggers.
LOCK TABLE {ours}.chunk, {ours}.chunk_staged IN SHARE ROW EXCLUSIVE MODE;

DROP TABLE IF EXISTS {ours}.chunk_vector CASCADE;
-- Rows of up to 2,000 numbers stay whole on their page: a search reads all of them. Those of chunks that are staged have
-- no organisation, so no search sees them.
CREATE TABLE {ours}.chunk_vector (
  num         bigint PRIMARY KEY,
  org         text COLLATE "C" NOT NULL,
  document_id text COLLATE "C" NOT NULL,
  model       text COLLATE "C" NOT NULL,
  dimensions  int NOT NULL,
  vector      {theirs}.vector NOT NULL
) WITH (toast_tuple_target = 8160);
CREATE INDEX chunk_vector_of ON {ours}.chunk_vector (org, model, dimensions, document_id);

-- Float32 bytes, the lowest first, as a vector of length 1; one without direction, or with a number that is none, is 0.
CREATE OR REPLACE FUNCTION {ours}.chunk_unit(data bytea) RETURNS {theirs}.vector
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  raw     bytea := data || ''::bytea;  -- a copy in memory: each look at a stored value would fetch all of it
  numbers double precision[];
  length  double precision;
BEGIN
  SELECT array_agg(v), sqrt(sum(v * v)) INTO numbers, length FROM (
    SELECT CASE WHEN e NOT IN (0, 255) THEN (CASE WHEN b < 0 THEN -8388608 - m ELSE 8388608 + m END)
                                            * power(2::double precision, e - 150)
                WHEN e = 0 THEN (CASE WHEN b < 0 THEN -m ELSE m END) * power(2::double precision, -149)
                ELSE 'NaN' END AS v
    FROM (SELECT b, (b >> 23) & 255 AS e, b & 8388607 AS m
          FROM (SELECT get_byte(raw, n) | (get_byte(raw, n + 1) << 8) | (get_byte(raw, n + 2) << 16)
                       | (get_byte(raw, n + 3) << 24) AS b
                FROM generate_series(0, octet_length(raw) - 4, 4) n OFFSET 0) bits OFFSET 0) parts OFFSET 0) f;
  IF abs(length - 1) < 1e-7 THEN
    RETURN CAST(numbers AS {theirs}.vector);
  END IF;
  IF length > 0 AND length < 'Infinity' THEN  -- NaN is above all numbers
    RETURN CAST((SELECT array_agg(v / length) FROM unnest(numbers) v) AS {theirs}.vector);
  END IF;
  RETURN CAST(array_fill(0::double precision, ARRAY[octet_length(raw) / 4]) AS {theirs}.vector);
END $$;

-- Keeps the table in step within the statement that changes chunks, whoever runs it: a program that has not seen the
-- extension too, and one that may not write here itself.
CREATE OR REPLACE FUNCTION {ours}.chunk_vector_follow() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    DELETE FROM {ours}.chunk_vector v USING gone WHERE v.num = gone.num AND (TG_TABLE_NAME = 'chunk' OR v.org = '');
  END IF;
  IF TG_OP = 'INSERT' AND TG_TABLE_NAME = 'chunk' THEN
    UPDATE {ours}.chunk_vector v SET org = come.org FROM come WHERE v.num = come.num;
  END IF;
  IF TG_OP <> 'DELETE' THEN
    INSERT INTO {ours}.chunk_vector AS v (num, org, document_id, model, dimensions, vector)
    SELECT num, CASE TG_TABLE_NAME WHEN 'chunk' THEN org ELSE '' END, document_id, model, octet_length(vector) / 4,
      {ours}.chunk_unit(vector) FROM come
    WHERE octet_length(vector) BETWEEN 4 AND 64000
    AND (SELECT known.num FROM {ours}.chunk_vector known WHERE known.num = come.num) IS NULL
    ON CONFLICT (num) DO UPDATE SET org = excluded.org, document_id = excluded.document_id, model = excluded.model,
      dimensions = excluded.dimensions, vector = excluded.vector;
  END IF;
  RETURN NULL;
EXCEPTION WHEN undefined_table OR undefined_column OR undefined_function OR undefined_object THEN
  RETURN NULL;  -- the extension was dropped, and the searchers find that out the same way
END $$;
REVOKE ALL ON FUNCTION {ours}.chunk_vector_follow() FROM PUBLIC;

CREATE OR REPLACE TRIGGER chunk_vector_come AFTER INSERT ON {ours}.chunk REFERENCING NEW TABLE AS come
  FOR EACH STATEMENT EXECUTE FUNCTION {ours}.chunk_vector_follow();
CREATE OR REPLACE TRIGGER chunk_vector_change AFTER UPDATE ON {ours}.chunk REFERENCING OLD TABLE AS gone NEW TABLE AS come
  FOR EACH STATEMENT EXECUTE FUNCTION {ours}.chunk_vector_follow();
CREATE OR REPLACE TRIGGER chunk_vector_go AFTER DELETE ON {ours}.chunk REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION {ours}.chunk_vector_follow();
CREATE OR REPLACE TRIGGER chunk_vector_come AFTER INSERT ON {ours}.chunk_staged REFERENCING NEW TABLE AS come
  FOR EACH STATEMENT EXECUTE FUNCTION {ours}.chunk_vector_follow();
CREATE OR REPLACE TRIGGER chunk_vector_go AFTER DELETE ON {ours}.chunk_staged REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION {ours}.chunk_vector_follow();
