// SPDX-License-Identifier: PostgreSQL
// The peer: graphile-worker, tuned as its documentation says for throughput (a local queue, batched completion), whose task publishes each
// event to NATS JetStream and waits for the acknowledgement.
//   node peer.js install CONNINFO                    makes its schema
//   node peer.js move CONNINFO NATS_URL SUBJECT N    moves N jobs; prints {"events": N, "seconds": ...}
const load = (name) => require(require.resolve(name, { paths: [process.cwd()] }));
const { run, runMigrations, Logger } = load("graphile-worker");
const { connect, headers } = load("nats");

const quiet = new Logger(() => () => {});

async function move(connectionString, url, subject, count) {
  const connection = await connect({ servers: url });
  const stream = connection.jetstream();
  let moved = 0;
  let started;
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const publish = async (payload) => {
    started ??= process.hrtime.bigint();
    const names = headers();
    names.set("Nats-Msg-Id", payload.id);
    await stream.publish(subject, JSON.stringify(payload), { headers: names });
    if (++moved === count) {
      finish();
    }
  };
  const runner = await run({
    connectionString,
    taskList: { publish },
    preset: {
      worker: {
        concurrentJobs: 64,
        maxPoolSize: 16,
        pollInterval: 100,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
        logger: quiet,
      },
    },
    noHandleSignals: true,
    logger: quiet,
  });
  await finished;
  const seconds = Number(process.hrtime.bigint() - started) / 1e9;
  await runner.stop();
  await connection.close();
  console.log(JSON.stringify({ events: moved, seconds }));
}

async function main() {
  const [action, connectionString, url, subject, count] = process.argv.slice(2);
  if (action === "install") {
    await runMigrations({ connectionString, logger: quiet });
  } else {
    await move(connectionString, url, subject, Number(count));
  }
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
