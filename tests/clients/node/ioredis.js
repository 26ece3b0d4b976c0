// ioredis: https://github.com/redis/ioredis

const Redis = require("ioredis");
const { assert, address, run, promised } = require("./sections");

function connect(options = {}) {
  const client = new Redis({ ...address(), maxRetriesPerRequest: 0, ...options });
  client.on("error", () => {});
  return client;
}

// Runs a section with RESP2 and with RESP3, a connection each.
function bothProtocols(section) {
  return async () => {
    for (const protocol of [2, 3]) {
      const client = connect({ protocol });
      await section(client, `io${protocol}`, protocol);
      client.disconnect();
    }
  };
}

run({
  // Opens with HELLO 3 and CLIENT SETINFO, and waits with INFO until the server is ready.
  async defaults() {
    const client = connect();
    assert.equal(await client.ping(), "PONG");
    assert.equal(await client.set("io:default", "1", "EX", 60), "OK");
    assert.equal(await client.get("io:default"), "1");
    assert.equal((await client.hello())[5], 3);
    client.disconnect();
  },

  types: bothProtocols(async (client, at) => {
    await client.del(`${at}:h`, `${at}:l`, `${at}:s`, `${at}:z`, `${at}:x`);
    assert.equal(await client.hset(`${at}:h`, { a: 1, b: 2 }), 2);
    assert.deepEqual({ ...(await client.hgetall(`${at}:h`)) }, { a: "1", b: "2" });
    assert.equal(await client.rpush(`${at}:l`, "a", "b", "c"), 3);
    assert.deepEqual(await client.lrange(`${at}:l`, 0, -1), ["a", "b", "c"]);
    assert.equal(await client.sadd(`${at}:s`, "a", "b"), 2);
    assert.deepEqual((await client.smembers(`${at}:s`)).sort(), ["a", "b"]);
    assert.equal(await client.zadd(`${at}:z`, 1.5, "a", 2, "b"), 2);
    assert.deepEqual((await client.zrange(`${at}:z`, 0, -1, "WITHSCORES")).flat().map(String),
      ["a", "1.5", "b", "2"]);
    assert.equal(await client.xadd(`${at}:x`, "1-1", "f", "v"), "1-1");
    assert.deepEqual(await client.xrange(`${at}:x`, "-", "+"), [["1-1", ["f", "v"]]]);
    const binary = Buffer.from([0, 255, 13, 10, 36, 128]);
    await client.set(`${at}:binary`, binary);
    assert.deepEqual(await client.getBuffer(`${at}:binary`), binary);
    assert.equal(await client.get(`${at}:none`), null);
  }),

  manyKeys: bothProtocols(async (client, at) => {
    const keys = Array.from({ length: 500 }, (_, n) => `${at}:many:${n}`);
    assert.equal(await client.mset(...keys.flatMap((key, n) => [key, n])), "OK");
    assert.deepEqual(await client.mget(...keys, `${at}:none`),
      [...keys.map((_, n) => String(n)), null]);
    assert.equal(await client.exists(...keys), 500);
    assert.equal(await client.del(...keys), 500);
  }),

  pipeline: bothProtocols(async (client, at) => {
    const pipeline = client.pipeline();
    for (let n = 0; n < 300; n++) {
      pipeline.set(`${at}:p:${n}`, n).get(`${at}:p:${n}`).mget(`${at}:p:${n}`, `${at}:none`);
    }
    pipeline.incr(`${at}:p:text`).set(`${at}:p:text`, "x").incr(`${at}:p:text`);
    await client.del(`${at}:p:text`);
    const answers = await pipeline.exec();
    for (let n = 0; n < 300; n++) {
      assert.deepEqual(answers.slice(3 * n, 3 * n + 3),
        [[null, "OK"], [null, String(n)], [null, [String(n), null]]]);
    }
    assert.deepEqual(answers[900], [null, 1]);
    assert.match(answers[902][0].message, /not an integer/);
  }),

  transaction: bothProtocols(async (client, at) => {
    await client.del(`{${at}}a`, `{${at}}b`);
    const answers = await client.multi().set(`{${at}}a`, "1").incr(`{${at}}a`).get(`{${at}}b`)
      .exec();
    assert.deepEqual(answers, [[null, "OK"], [null, 2], [null, null]]);
    // A watched key that changes lets the transaction come to nothing.
    const other = connect();
    assert.equal(await client.watch(`{${at}}a`), "OK");
    await other.set(`{${at}}a`, "other");
    assert.equal(await client.multi().set(`{${at}}a`, "mine").exec(), null);
    assert.equal(await client.get(`{${at}}a`), "other");
    other.disconnect();
    // A wrong command inside lets all of it fail.
    await assert.rejects(client.multi().set(`{${at}}a`, "2").call("get").exec(),
      /EXECABORT|Transaction discarded/);
    assert.equal(await client.get(`{${at}}a`), "other");
  }),

  script: bothProtocols(async (client, at) => {
    client.defineCommand("double", {
      numberOfKeys: 1,
      lua: "return {redis.call('incrby', KEYS[1], ARGV[1]), ARGV[1] * 2}",
    });
    await client.del(`${at}:script`);
    // The second time by its digest.
    assert.deepEqual(await client.double(`${at}:script`, 5), [5, 10]);
    assert.deepEqual(await client.double(`${at}:script`, 6), [11, 12]);
    const digest = await client.script("LOAD", "return KEYS[1]");
    for (let n = 0; n < 10; n++) {
      assert.equal(await client.evalsha(digest, 1, `${at}:${n}`), `${at}:${n}`);
    }
    assert.deepEqual(await client.script("EXISTS", digest, "0".repeat(40)), [1, 0]);
    await assert.rejects(client.evalsha("0".repeat(40), 1, "a"), /NOSCRIPT/);
  }),

  pubsub: bothProtocols(async (client, at, protocol) => {
    const subscriber = connect({ protocol });
    const heard = [], all = promised();
    const hear = (...words) => heard.push(words) === 4 && all.resolve();
    subscriber.on("message", hear);
    subscriber.on("pmessage", hear);
    assert.equal(await subscriber.subscribe(`${at}:news`, `${at}:other`), 2);
    assert.equal(await subscriber.psubscribe(`${at}:n*`), 3);
    assert.equal(await client.publish(`${at}:other`, "1"), 1);
    assert.equal(await client.publish(`${at}:news`, "2"), 2);
    assert.equal(await client.publish(`${at}:nobody's`, "3"), 1);
    await all.promise;
    assert.deepEqual(heard.map(String).sort(), [
      `${at}:n*,${at}:news,2`, `${at}:n*,${at}:nobody's,3`, `${at}:news,2`, `${at}:other,1`].sort());
    // Without names ioredis would wait until no pattern is left either.
    assert.equal(await subscriber.unsubscribe(`${at}:news`, `${at}:other`), 1);
    assert.equal(await subscriber.punsubscribe(), 0);
    assert.equal(await subscriber.get(`${at}:none`), null);
    subscriber.disconnect();
  }),

  blocking: bothProtocols(async (client, at, protocol) => {
    const waiting = connect({ protocol });
    await client.del(`${at}:queue`, `${at}:stream`);
    const popped = waiting.blpop(`${at}:queue`, 20);
    await client.rpush(`${at}:queue`, "job");
    assert.deepEqual(await popped, [`${at}:queue`, "job"]);
    assert.equal(await waiting.brpop(`${at}:queue`, 0.05), null);
    const read = waiting.xread("BLOCK", 20000, "STREAMS", `${at}:stream`, "0");
    await client.xadd(`${at}:stream`, "1-1", "f", "v");
    const streams = await read;
    assert.deepEqual(Array.isArray(streams) ? streams.flat() : Object.entries(streams).flat(),
      [`${at}:stream`, [["1-1", ["f", "v"]]]]);
    waiting.disconnect();
  }),

  scan: bothProtocols(async (client, at) => {
    const keys = Array.from({ length: 300 }, (_, n) => `${at}:scan:${n}`).sort();
    await client.mset(...keys.flatMap((key) => [key, "v"]));
    const found = [];
    for await (const batch of client.scanStream({ match: `${at}:scan:*`, count: 20 })) {
      found.push(...batch);
    }
    assert.deepEqual([...new Set(found)].sort(), keys);
    const fields = Object.fromEntries(keys.map((key) => [key, "v"]));
    await client.hset(`${at}:scanned`, fields);
    let pairs = 0;
    for await (const batch of client.hscanStream(`${at}:scanned`)) pairs += batch.length;
    assert.equal(pairs, 600);
  }),

  async databases() {
    const zero = connect(), three = connect({ db: 3 });
    await zero.set("io:db", "0");
    await three.set("io:db", "3");
    assert.equal(await zero.get("io:db"), "0");
    assert.equal(await three.get("io:db"), "3");
    assert.equal(await zero.select(3), "OK");
    assert.equal(await zero.get("io:db"), "3");
    zero.disconnect();
    three.disconnect();
  },

  errors: bothProtocols(async (client, at) => {
    await client.set(`${at}:text`, "abc");
    await assert.rejects(client.incr(`${at}:text`), /not an integer/);
    await assert.rejects(client.lpush(`${at}:text`, "x"), /^ReplyError: WRONGTYPE/);
    await assert.rejects(client.call("nosuch", "a"), /ERR unknown command 'nosuch'/);
    assert.equal(await client.get(`${at}:text`), "abc");
  }),

  async monitoring() {
    const client = connect();
    const monitor = await client.monitor();
    const seen = promised();
    monitor.on("monitor", (_time, words) => words[1] === "io:seen" && seen.resolve(words));
    await client.set("io:seen", "1");
    assert.deepEqual(await seen.promise, ["set", "io:seen", "1"]);
    monitor.disconnect();
    client.disconnect();
  },
});
