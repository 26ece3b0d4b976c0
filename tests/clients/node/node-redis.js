// node-redis: https://github.com/redis/node-redis

const { createClient, defineScript, ErrorReply, WatchError } = require("redis");
const { assert, address, run, promised } = require("./sections");

async function connect(options = {}) {
  const client = createClient({
    socket: { ...address(), reconnectStrategy: false }, ...options,
  });
  client.on("error", () => {});
  await client.connect();
  return client;
}

// Runs a section with RESP2 and with RESP3, a connection each.
function bothProtocols(section) {
  return async () => {
    for (const RESP of [2, 3]) {
      const client = await connect({ RESP, scripts });
      await section(client, `nr${RESP}`, RESP);
      client.destroy();
    }
  };
}

const scripts = {
  double: defineScript({
    SCRIPT: "return {redis.call('incrby', KEYS[1], ARGV[1]), ARGV[1] * 2}",
    NUMBER_OF_KEYS: 1,
    parseCommand(parser, key, by) {
      parser.pushKey(key);
      parser.push(String(by));
    },
    transformReply: undefined,
  }),
};

// A plain object of what came with no prototype.
const plain = (object) => ({ ...object });

run({
  // Opens with its own choice of protocol, and CLIENT SETINFO.
  async defaults() {
    const client = await connect();
    assert.equal(await client.ping(), "PONG");
    assert.equal(await client.set("nr:default", "1", { EX: 60 }), "OK");
    assert.equal(await client.get("nr:default"), "1");
    assert.equal(await client.ttl("nr:default"), 60);
    await client.close();
  },

  types: bothProtocols(async (client, at) => {
    await client.del(["h", "l", "s", "z", "x"].map((name) => `${at}:${name}`));
    assert.equal(await client.hSet(`${at}:h`, { a: 1, b: 2 }), 2);
    assert.deepEqual(plain(await client.hGetAll(`${at}:h`)), { a: "1", b: "2" });
    assert.equal(await client.rPush(`${at}:l`, ["a", "b", "c"]), 3);
    assert.deepEqual(await client.lRange(`${at}:l`, 0, -1), ["a", "b", "c"]);
    assert.equal(await client.sAdd(`${at}:s`, ["a", "b"]), 2);
    assert.deepEqual((await client.sMembers(`${at}:s`)).sort(), ["a", "b"]);
    await client.zAdd(`${at}:z`, [{ score: 1.5, value: "a" }, { score: 2, value: "b" }]);
    assert.equal(await client.zScore(`${at}:z`, "a"), 1.5);
    assert.deepEqual((await client.zRangeWithScores(`${at}:z`, 0, -1)).map(plain),
      [{ value: "a", score: 1.5 }, { value: "b", score: 2 }]);
    assert.equal(await client.xAdd(`${at}:x`, "1-1", { f: "v" }), "1-1");
    assert.equal((await client.xRange(`${at}:x`, "-", "+"))[0].message.f, "v");
    assert.equal(await client.get(`${at}:none`), null);
    await client.geoAdd(`${at}:geo`, { member: "here", longitude: 13.4, latitude: 52.5 });
    const [position] = await client.geoPos(`${at}:geo`, "here");
    assert(Math.abs(Number(position.longitude) - 13.4) < 1e-4);
  }),

  manyKeys: bothProtocols(async (client, at) => {
    const keys = Array.from({ length: 500 }, (_, n) => `${at}:many:${n}`);
    assert.equal(await client.mSet(keys.map((key, n) => [key, String(n)])), "OK");
    assert.deepEqual(await client.mGet([...keys, `${at}:none`]),
      [...keys.map((_, n) => String(n)), null]);
    assert.equal(await client.exists(keys), 500);
    assert.equal(await client.unlink(keys), 500);
  }),

  // What is asked for in one turn of the loop is sent at once.
  pipeline: bothProtocols(async (client, at) => {
    const asked = [];
    for (let n = 0; n < 300; n++) {
      asked.push(client.set(`${at}:p:${n}`, n), client.get(`${at}:p:${n}`),
        client.mGet([`${at}:p:${n}`, `${at}:none`]));
    }
    const answers = await Promise.all(asked);
    for (let n = 0; n < 300; n++) {
      assert.deepEqual(answers.slice(3 * n, 3 * n + 3), ["OK", String(n), [String(n), null]]);
    }
    assert.deepEqual(await client.multi().set(`${at}:p:a`, "1").get(`${at}:p:a`).get(`${at}:p:b`)
      .execAsPipeline(), ["OK", "1", null]);
  }),

  transaction: bothProtocols(async (client, at) => {
    await client.del([`{${at}}a`, `{${at}}b`]);
    assert.deepEqual(
      await client.multi().set(`{${at}}a`, "1").incr(`{${at}}a`).get(`{${at}}b`).exec(),
      ["OK", 2, null]);
    const other = await connect();
    assert.equal(await client.watch(`{${at}}a`), "OK");
    await other.set(`{${at}}a`, "other");
    await assert.rejects(client.multi().set(`{${at}}a`, "mine").exec(), WatchError);
    assert.equal(await client.get(`{${at}}a`), "other");
    other.destroy();
    await assert.rejects(client.multi().set(`{${at}}a`, "2").addCommand(["get"]).exec(), ErrorReply);
    assert.equal(await client.get(`{${at}}a`), "other");
  }),

  script: bothProtocols(async (client, at) => {
    await client.del(`${at}:script`);
    assert.deepEqual(await client.double(`${at}:script`, 5), [5, 10]);
    assert.deepEqual(await client.double(`${at}:script`, 6), [11, 12]);
    const digest = await client.scriptLoad("return KEYS[1]");
    for (let n = 0; n < 10; n++) {
      assert.equal(await client.evalSha(digest, { keys: [`${at}:${n}`] }), `${at}:${n}`);
    }
    assert.deepEqual(await client.scriptExists([digest, "0".repeat(40)]), [1, 0]);
    const code = `#!lua name=${at}\nredis.register_function('${at}', function(k, a) return a[1] end)`;
    assert.equal(await client.functionLoad(code, { REPLACE: true }), at);
    for (let n = 0; n < 10; n++) {
      assert.equal(await client.fCall(at, { keys: [`${at}:${n}`], arguments: ["a"] }), "a");
    }
    assert.equal(await client.functionDelete(at), "OK");
  }),

  pubsub: bothProtocols(async (client, at, RESP) => {
    const subscriber = await connect({ RESP });
    const heard = [], all = promised();
    const hear = (message, channel) => heard.push(`${channel} ${message}`) === 5 && all.resolve();
    await subscriber.subscribe(`${at}:news`, hear);
    await subscriber.pSubscribe(`${at}:n*`, hear);
    await subscriber.sSubscribe(`${at}:shard`, hear);
    assert.equal(await client.publish(`${at}:news`, "1"), 2);
    assert.equal(await client.publish(`${at}:nobody's`, "2"), 1);
    assert.equal(await client.sPublish(`${at}:shard`, "3"), 1);
    assert.equal(await client.publish(`${at}:news`, "4"), 2);
    await all.promise;
    while (heard.length < 6) await new Promise(setImmediate);
    assert.deepEqual(heard.sort(), [`${at}:news 1`, `${at}:news 1`, `${at}:news 4`,
      `${at}:news 4`, `${at}:nobody's 2`, `${at}:shard 3`].sort());
    await subscriber.unsubscribe();
    await subscriber.pUnsubscribe();
    await subscriber.sUnsubscribe();
    assert.equal(await subscriber.get(`${at}:none`), null);
    subscriber.destroy();
  }),

  blocking: bothProtocols(async (client, at, RESP) => {
    const waiting = await connect({ RESP });
    await client.del([`${at}:queue`, `${at}:stream`]);
    const popped = waiting.blPop(`${at}:queue`, 20);
    await client.rPush(`${at}:queue`, "job");
    assert.deepEqual(plain(await popped), { key: `${at}:queue`, element: "job" });
    assert.equal(await waiting.brPop(`${at}:queue`, 0.05), null);
    await client.xGroupCreate(`${at}:stream`, "group", "0", { MKSTREAM: true });
    const read = waiting.xReadGroup("group", "me", { key: `${at}:stream`, id: ">" },
      { BLOCK: 20000 });
    await client.xAdd(`${at}:stream`, "1-1", { f: "v" });
    assert.match(JSON.stringify(await read), /1-1.*"f":"v"/);
    waiting.destroy();
  }),

  scan: bothProtocols(async (client, at) => {
    const keys = Array.from({ length: 300 }, (_, n) => `${at}:scan:${n}`).sort();
    await client.mSet(keys.map((key) => [key, "v"]));
    const found = [];
    for await (const batch of client.scanIterator({ MATCH: `${at}:scan:*`, COUNT: 20 })) {
      found.push(...batch);
    }
    assert.deepEqual([...new Set(found)].sort(), keys);
    assert.deepEqual((await client.keys(`${at}:scan:*`)).sort(), keys);
    assert((await client.dbSize()) >= 300);
  }),

  async databases() {
    const zero = await connect(), three = await connect({ database: 3 });
    await zero.set("nr:db", "0");
    await three.set("nr:db", "3");
    assert.equal(await zero.get("nr:db"), "0");
    assert.equal(await three.get("nr:db"), "3");
    await zero.select(3);
    assert.equal(await zero.get("nr:db"), "3");
    zero.destroy();
    three.destroy();
  },

  errors: bothProtocols(async (client, at) => {
    await client.set(`${at}:text`, "abc");
    await assert.rejects(client.incr(`${at}:text`), /not an integer/);
    await assert.rejects(client.lPush(`${at}:text`, "x"), /WRONGTYPE/);
    await assert.rejects(client.sendCommand(["nosuch", "a"]), /ERR unknown command 'nosuch'/);
    assert.equal(await client.get(`${at}:text`), "abc");
  }),

  async server() {
    const client = await connect();
    assert.match(await client.info("server"), /redis_version:/);
    assert((await client.configGet("maxmemory")).maxmemory !== undefined);
    assert((await client.clientId()) > 0);
    assert((await client.commandCount()) > 200);
    await client.clientSetName("node");
    assert.equal(await client.clientGetName(), "node");
    client.destroy();
  },
});
