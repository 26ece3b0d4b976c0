// What both programs share: sections that run one after another, and the first wrong answer ends
// the program. Arguments, if there are any, name the sections to run.

const assert = require("node:assert/strict");

const PATIENCE = 30_000;

function address(name = "CASHEW_REDIS") {
  const [host, port] = (process.env[name] ?? "").split(":");
  assert(port, `${name}=HOST:PORT is not set; the programs of tests/python do that`);
  return { host, port: Number(port) };
}

async function run(sections) {
  const chosen = process.argv.slice(2);
  for (const [name, section] of Object.entries(sections)) {
    if (chosen.length > 0 && !chosen.includes(name)) continue;
    const late = setTimeout(() => {
      console.error(`${name}: not within ${PATIENCE} ms`);
      process.exit(1);
    }, PATIENCE);
    try {
      await section();
    } catch (error) {
      console.error(`${name}:`, error);
      process.exit(1);
    }
    clearTimeout(late);
    console.log(`ok ${name}`);
  }
  process.exit(0);
}

// A promise and the functions that settle it.
function promised() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

module.exports = { assert, address, run, promised };
