// Runs the script of the page without a browser: a document of plain objects, and answers as they came from
// a gateway. Prints what the page shows as JSON.
"use strict";
const fs = require("fs");
const vm = require("vm");

const { page, answers, clicks } = JSON.parse(fs.readFileSync(0, "utf8"));
const tags = new Set(), asked = [];

class Element {
  constructor(tag) { this.tag = tag; this.attributes = {}; this.children = []; this.listeners = {}; tags.add(tag); }
  setAttribute(name, value) {
    if (/^on/i.test(name) || name === "style") throw new Error(`the policy forbids ${name}`);
    this.attributes[name] = String(value);
  }
  getAttribute(name) { return this.attributes[name] ?? null; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  set textContent(text) { this.children = [String(text)]; }
  get textContent() { return this.children.map(child => typeof child === "string" ? child : child.textContent).join(" "); }
  focus() { document.activeElement = this; }
  all() { return this.children.filter(child => typeof child !== "string").flatMap(child => [child, ...child.all()]); }
  querySelectorAll(tag) { return this.all().filter(element => element.tag === tag); }
}

const places = { about: new Element("span"), main: new Element("main"), silent: new Element("span") };
const classes = {};
const document = {
  title: "", hidden: false, activeElement: null,
  body: { classList: { toggle: (name, on) => { classes[name] = on; } } },
  createElement: tag => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  getElementById: id => places[id],
};
let rounds = 0;
function wait(resolve) {
  // Each round of the page is a second; a few of them are enough.
  rounds += 1;
  if (rounds === 1) for (const key of clicks) {
    const button = places.main.querySelectorAll("button").find(button => button.getAttribute("data-key") === key);
    button.focus();
    button.listeners.click();
  }
  if (rounds < 8) setImmediate(resolve); else setImmediate(report);
}
function report() {
  const paths = places.main.querySelectorAll("path").map(path => path.getAttribute("d"));
  const focused = document.activeElement && document.activeElement.getAttribute("data-key");
  const attributes = places.main.all().flatMap(element => Object.keys(element.attributes));
  console.log(JSON.stringify({ title: document.title, about: places.about.textContent, main: places.main.textContent,
    silent: places.silent.textContent, isSilent: classes.silent, tags: [...tags], asked, paths, focused,
    attributes: [...new Set(attributes)] }));
}
async function fetch(path) {
  asked.push(path);
  const answer = answers[path];
  if (answer === undefined) return { ok: false };
  if (answer === null) throw new Error("refused");
  return { ok: true, json: async () => answer };
}

const script = /<script nonce="[0-9a-f]+">\n([^]*)<\/script>/.exec(page)[1];
vm.runInNewContext(script, { document, fetch, setTimeout: wait, AbortSignal, console });
