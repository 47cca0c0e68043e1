// SPDX-License-Identifier: PostgreSQL
// The peer: an Express application whose POST /pay goes through @node-idempotency/core on Redis.
//   node peer.js PORT REDIS_SOCKET      in a directory with node_modules
const path = require("path");
const load = (name) => require(require.resolve(name, { paths: [process.cwd()] }));
const express = load("express");
const { Idempotency } = load("@node-idempotency/core");
const { RedisStorageAdapter } = load("@node-idempotency/storage-adapter-redis");

async function main() {
  const [port, socket] = process.argv.slice(2);
  const storage = new RedisStorageAdapter({ socket: { path: path.resolve(socket) } });
  await storage.connect();
  const idempotency = new Idempotency(storage, { cacheTTLMS: 24 * 3600 * 1000 });
  const application = express();
  application.disable("x-powered-by");
  application.disable("etag");
  application.use(express.json());
  application.post("/pay", async (request, response) => {
    const intent = { headers: request.headers, path: request.path, body: request.body, method: request.method, options: {} };
    try {
      const stored = await idempotency.onRequest(intent);
      if (stored) {
        response.status(stored.additional.statusCode).set("Idempotency-Replayed", "true").json(stored.body);
        return;
      }
      const answer = { charge: 17, status: "paid" };
      await idempotency.onResponse(intent, { body: answer, additional: { statusCode: 201 } });
      response.status(201).json(answer);
    } catch (error) {
      response.status(409).json({ error: error.message });
    }
  });
  const server = application.listen(Number(port), "127.0.0.1", () => console.log("listening"));
  server.keepAliveTimeout = 60000;
}

main();
