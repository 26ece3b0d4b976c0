// BullMQ through the gateway: what docs/how-to.md says of it. See scripts/frameworks.
"use strict";

const assert = require("node:assert");
const { Queue, Worker, QueueEvents, FlowProducer } = require("bullmq");

const [host, port] = process.env.CASHEW_REDIS.split(":");
const prefix = process.env.BULLMQ_PREFIX || "{bull}";
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const options = { connection, prefix };
const ok = (section) => console.log("ok", section);

async function main() {
  const queue = new Queue("work", options);
  const events = new QueueEvents("work", options);
  await events.waitUntilReady();
  const worker = new Worker("work", async (job) => {
    if (job.name === "parent") {
      const children = Object.values(await job.getChildrenValues());
      return children.reduce((sum, value) => sum + value, 0);
    }
    return job.data.n * 2;
  }, { ...options, concurrency: 4 });
  const jobs = await queue.addBulk([...Array(20).keys()].map((n) => ({ name: "double", data: { n } })));
  const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 20000)));
  assert.deepStrictEqual(results, [...Array(20).keys()].map((n) => 2 * n));
  ok("bullmq: jobs and events");
  const late = await queue.add("double", { n: 4 }, { delay: 500 });
  assert.strictEqual(await late.waitUntilFinished(events, 20000), 8);
  ok("bullmq: a delayed job");
  const flows = new FlowProducer(options);
  const flow = await flows.add({
    name: "parent", queueName: "work",
    children: [1, 2, 3].map((n) => ({ name: "double", data: { n }, queueName: "work" })),
  });
  assert.strictEqual(await flow.job.waitUntilFinished(events, 20000), 12);
  ok("bullmq: a flow");
  await queue.obliterate({ force: true });
  await Promise.all([worker.close(), events.close(), queue.close(), flows.close()]);
}

main().then(() => process.exit(0), (error) => {
  console.log("failed bullmq:", String(error.message || error).slice(0, 300));
  process.exit(1);
});
