// ioredis as a client of Redis Cluster: https://github.com/redis/ioredis#cluster

const Redis = require("ioredis");
const { assert, address, run, promised } = require("./sections");

function connect(options = {}) {
  const { redisOptions, ...others } = options;
  const client = new Redis.Cluster([address()], {
    maxRedirections: 0,
    redisOptions: { maxRetriesPerRequest: 0, ...redisOptions },
    ...others,
  });
  client.on("error", () => {});
  return client;
}

function bothProtocols(section) {
  return async () => {
    for (const protocol of [2, 3]) {
      const client = connect({ redisOptions: { protocol } });
      await section(client, `ioc${protocol}`, protocol);
      client.disconnect();
    }
  };
}

const nodes = () => (process.env.CASHEW_NODES ?? "").split(",").sort();

run({
  // It asks for CLUSTER SLOTS, CLUSTER INFO and INFO before anything else.
  topology: bothProtocols(async (client) => {
    await client.ping();
    assert.deepEqual(client.nodes().map(({ options }) => `${options.host}:${options.port}`).sort(),
      nodes());
  }),

  types: bothProtocols(async (client, at) => {
    await client.del(`${at}:h`);
    assert.equal(await client.hset(`${at}:h`, { a: 1, b: 2 }), 2);
    assert.deepEqual({ ...(await client.hgetall(`${at}:h`)) }, { a: "1", b: "2" });
    for (let n = 0; n < 200; n++) assert.equal(await client.set(`${at}:${n}`, n), "OK");
    for (let n = 0; n < 200; n++) assert.equal(await client.get(`${at}:${n}`), String(n));
    assert.equal(await client.get(`${at}:none`), null);
  }),

  manyKeys: bothProtocols(async (client, at) => {
    const keys = Array.from({ length: 500 }, (_, n) => `{${at}}:many:${n}`);
    assert.equal(await client.mset(...keys.flatMap((key, n) => [key, n])), "OK");
    assert.deepEqual(await client.mget(...keys, `{${at}}:none`),
      [...keys.map((_, n) => String(n)), null]);
    assert.equal(await client.del(...keys), 500);
  }),

  pipeline: bothProtocols(async (client, at) => {
    const pipeline = client.pipeline();
    for (let n = 0; n < 300; n++) {
      pipeline.set(`{${at}}:p:${n}`, n).get(`{${at}}:p:${n}`);
    }
    const answers = await pipeline.exec();
    for (let n = 0; n < 300; n++) {
      assert.deepEqual(answers.slice(2 * n, 2 * n + 2), [[null, "OK"], [null, String(n)]]);
    }
  }),

  transaction: bothProtocols(async (client, at) => {
    await client.del(`{${at}}a`, `{${at}}b`);
    const answers = await client.multi().set(`{${at}}a`, "1").incr(`{${at}}a`).get(`{${at}}b`)
      .exec();
    assert.deepEqual(answers, [[null, "OK"], [null, 2], [null, null]]);
  }),

  script: bothProtocols(async (client, at) => {
    client.defineCommand("double", {
      numberOfKeys: 1,
      lua: "return {redis.call('incrby', KEYS[1], ARGV[1]), ARGV[1] * 2}",
    });
    await client.del(`${at}:script`);
    assert.deepEqual(await client.double(`${at}:script`, 5), [5, 10]);
    assert.deepEqual(await client.double(`${at}:script`, 6), [11, 12]);
  }),

  pubsub: bothProtocols(async (client, at, protocol) => {
    const subscriber = connect({ redisOptions: { protocol } });
    const heard = [], all = promised();
    const hear = (...words) => heard.push(words.map(String).join()) === 3 && all.resolve();
    subscriber.on("message", hear);
    subscriber.on("pmessage", hear);
    await subscriber.subscribe(`${at}:news`);
    await subscriber.psubscribe(`${at}:n*`);
    assert.equal(await client.publish(`${at}:news`, "1"), 2);
    assert.equal(await client.publish(`${at}:nobody's`, "2"), 1);
    await all.promise;
    assert.deepEqual(heard.sort(), [
      `${at}:n*,${at}:news,1`, `${at}:n*,${at}:nobody's,2`, `${at}:news,1`].sort());
    subscriber.disconnect();
  }),

  // Its shard channels are heard at the node of their slot.
  sharded: bothProtocols(async (client, at, protocol) => {
    const subscriber = connect({ redisOptions: { protocol }, shardedSubscribers: true });
    const heard = [], all = promised();
    subscriber.on("smessage", (channel, message) =>
      heard.push(`${channel},${message}`) === 2 && all.resolve());
    for (const name of ["a", "b"]) await subscriber.ssubscribe(`${at}:${name}`);
    for (const name of ["a", "b"]) assert.equal(await client.spublish(`${at}:${name}`, "x"), 1);
    await all.promise;
    assert.deepEqual(heard.sort(), [`${at}:a,x`, `${at}:b,x`]);
    subscriber.disconnect();
  }),

  blocking: bothProtocols(async (client, at, protocol) => {
    const waiting = connect({ redisOptions: { protocol } });
    await client.del(`${at}:queue`);
    const popped = waiting.blpop(`${at}:queue`, 20);
    await client.rpush(`${at}:queue`, "job");
    assert.deepEqual(await popped, [`${at}:queue`, "job"]);
    waiting.disconnect();
  }),

  // Every gateway has all keys, so that one of them tells of all.
  scan: bothProtocols(async (client, at) => {
    const keys = Array.from({ length: 300 }, (_, n) => `${at}:scan:${n}`).sort();
    for (const key of keys) await client.set(key, "v");
    for (const node of client.nodes("master")) {
      const found = [];
      for await (const batch of node.scanStream({ match: `${at}:scan:*`, count: 20 })) {
        found.push(...batch);
      }
      assert.deepEqual([...new Set(found)].sort(), keys);
    }
  }),

  // READONLY is what it says to every node.
  async readers() {
    const client = connect({ scaleReads: "all" });
    assert.equal(await client.set("ioc:reader", "1"), "OK");
    assert.equal(await client.get("ioc:reader"), "1");
    client.disconnect();
  },
});
