// node-redis while an instance drains: asks until the file CASHEW_DRAIN_END is there, and counts what fails.

const fs = require("node:fs");
const { createClient } = require("redis");
const { address } = require("./sections");

const CLIENTS = 6;

async function ask(number, counts) {
  const client = createClient({
    RESP: 3,
    maintNotifications: process.env.CASHEW_DRAIN_MODE,
    maintEndpointType: "internal-ip",
    socket: { ...address(), reconnectStrategy: 100 },
  });
  client.on("error", () => {});
  await client.connect();
  while (!fs.existsSync(process.env.CASHEW_DRAIN_END)) {
    try {
      await client.set(`nr:${number}`, "1");
      if ((await client.get(`nr:${number}`)) !== "1") throw new Error("another reply");
      counts.done += 2;
    } catch (error) {
      counts.errors += 1;
      if (counts.errors < 5) console.log(`client ${number}: ${error}`);
    }
  }
  client.destroy();
}

async function main() {
  const counts = { done: 0, errors: 0 };
  // Without a server left a request waits for ever.
  const ended = setInterval(() => {
    if (!fs.existsSync(process.env.CASHEW_DRAIN_END)) return;
    clearInterval(ended);
    setTimeout(() => finish(counts), 2000);
  }, 100);
  await Promise.all([...Array(CLIENTS).keys()].map((number) => ask(number, counts)));
  finish(counts);
}

function finish(counts) {
  console.log(`done ${counts.done} errors ${counts.errors}`);
  process.exit(0);
}

main();
