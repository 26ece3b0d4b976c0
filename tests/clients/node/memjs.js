// memjs, which speaks the binary protocol only: https://github.com/memcachier/memjs

const memjs = require("memjs");
const { assert, address, run } = require("./sections");

const { host, port } = address("CASHEW_MEMCACHED");
const client = memjs.Client.create(`${host}:${port}`, { timeout: 20, conntimeout: 20, retries: 0 });
const text = async (key) => (await client.get(key)).value?.toString() ?? null;

run({
  async storage() {
    assert.equal(await client.set("mj:a", "1", { expires: 100 }), true);
    assert.equal(await text("mj:a"), "1");
    assert.equal(await text("mj:none"), null);
    assert.equal(await client.add("mj:a", "2", {}), false);
    assert.equal(await client.add("mj:b", "2", {}), true);
    assert.equal(await client.replace("mj:none", "2", {}), false);
    assert.equal(await client.replace("mj:b", "x", {}), true);
    assert.equal(await client.append("mj:b", "y"), true);
    assert.equal(await text("mj:b"), "xy");
    // What memjs 1.3 sends for it is APPEND.
    assert.equal(await client.prepend("mj:b", "w"), true);
    assert.equal(await client.touch("mj:b", 100), true);
    assert.equal(await client.delete("mj:b"), true);
    assert.equal(await client.delete("mj:b"), false);
  },

  async counters() {
    assert.equal((await client.increment("mj:n", 1, { initial: 41 })).value, 41);
    assert.equal((await client.increment("mj:n", 1, {})).value, 42);
    assert.equal((await client.decrement("mj:n", 40, {})).value, 2);
  },

  async bytes() {
    const value = Buffer.from(Array.from({ length: 900_000 }, (_, n) => n % 256));
    assert.equal(await client.set("mj:large", value, {}), true);
    assert.deepEqual((await client.get("mj:large")).value, value);
    assert.equal(await client.set("mj:flags", "", {}), true);
    assert.equal((await client.get("mj:flags")).value.length, 0);
    await assert.rejects(client.set("mj:huge", Buffer.alloc(2 << 20), {}));
    assert.deepEqual((await client.get("mj:large")).value, value);
  },

  // Whatever is asked at once travels on one connection.
  async pipelined() {
    const keys = Array.from({ length: 500 }, (_, n) => `mj:many:${n}`);
    const done = await Promise.all(keys.map((key, n) => client.set(key, `${n}`, {})));
    assert(done.every((stored) => stored === true));
    assert.deepEqual(await Promise.all(keys.map(text)), keys.map((_, n) => `${n}`));
  },

  async servers() {
    const stats = await new Promise((resolve, reject) =>
      client.stats((error, _server, found) => (error ? reject(error) : resolve(found))));
    assert(Number(stats.curr_items) >= 500, JSON.stringify(stats));
    await new Promise((resolve, reject) =>
      client.flush((error) => (error ? reject(error) : resolve())));
    assert.equal(await text("mj:a"), null);
  },
});
