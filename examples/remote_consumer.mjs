// A service that does a stage of a Perdure pipeline: it hears ArchiveIngested, works, beats, and answers JSONParsed.
//
//   npm install amqplib && RABBITMQ_HOST=localhost node examples/remote_consumer.mjs     (docs/remote.md has the format)

import amqp from "amqplib";

const EVENT = "ArchiveIngested";
const env = process.env;

// Whatever this service is for; what it throws counts as a failure of the document.
async function work(event) {
  const { text, data } = event.document;
  const content = text ?? Buffer.from(data ?? "", "base64").toString("utf8");
  return { messages: content.split("\n").filter((line) => line.startsWith("From ")).length };
}

// Answer, and only then acknowledge: should we die before that, the event comes again, to us or to another.
async function handle(channel, message) {
  const event = JSON.parse(message.content.toString());
  const { document_id, org, job, token, pipeline, reply } = event; // the token is a string: numbers here are too short
  const tell = (key, facts) => {
    const body = Buffer.from(JSON.stringify({ document_id, org, job, token, pipeline, ...facts }));
    return new Promise((confirmed, refused) =>
      channel.publish(reply.exchange, key, body, { persistent: true }, (error) =>
        error ? refused(error) : confirmed(),
      ),
    );
  };
  const beat = () => tell(reply.beat, {}).catch(() => {});
  await beat();
  const beating = setInterval(beat, (event.lease_s * 1000) / 3);
  try {
    const output = await work(event);
    await tell(reply.done, { output });
  } catch (error) {
    await tell(reply.failed, { error: { code: "parse_failed", message: String(error) } });
  } finally {
    clearInterval(beating);
  }
  channel.ack(message);
}

const connection = await amqp.connect({
  hostname: env.RABBITMQ_HOST ?? "localhost",
  port: Number(env.RABBITMQ_PORT ?? 5672),
  username: env.RABBITMQ_USERNAME ?? "guest",
  password: env.RABBITMQ_PASSWORD ?? "guest",
});
// Whoever starts us starts us again; what was not acknowledged comes again.
connection.on("close", () => process.exit(1));
connection.on("error", () => process.exit(1));
const channel = await connection.createConfirmChannel();
await channel.prefetch(10);
await channel.assertExchange("perdure", "topic", { durable: true });
await channel.assertQueue("archive-parser", { durable: true });
await channel.bindQueue("archive-parser", "perdure", EVENT);
await channel.consume("archive-parser", (message) =>
  handle(channel, message).catch((error) => {
    console.error(`not answered: ${error}`);
    process.exit(1);
  }),
);
console.log(`listening for ${EVENT}`);
