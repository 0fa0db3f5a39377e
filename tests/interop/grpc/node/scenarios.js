// Scenarios of Apache's Node client of the 5.x series: ENDPOINT SUFFIX NAME...; a JSON line each.
"use strict";

const assert = require("node:assert");
const { Producer, PushConsumer, SimpleConsumer, ConsumeResult } = require("rocketmq-client-nodejs");
const { TransactionResolution } =
  require("rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb");

const [endpoints, suffix, ...names] = process.argv.slice(2);
const { INTEROP_ACCESS_KEY: accessKey, INTEROP_SECRET_KEY: accessSecret } = process.env;
const quiet = { debug() {}, info() {}, warn: console.error, error: console.error };
const where = {
  endpoints,
  namespace: "",
  logger: quiet,
  sslEnabled: process.env.INTEROP_TLS === "1",
  ...(accessKey && { sessionCredentials: { accessKey, accessSecret } }),
};

const topic = kind => `${kind}_${suffix}`;
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const message = (kind, body, more = {}) => ({ topic: topic(kind), body: Buffer.from(body), ...more });

async function producer(kind, more = {}) {
  const made = new Producer({ ...where, topics: [topic(kind)], topic: topic(kind), ...more });
  await made.startup();
  return made;
}

async function waitFor(condition, what) {
  const deadline = Date.now() + 90_000;
  while (!condition()) {
    assert(Date.now() < deadline, `not in 90 s: ${JSON.stringify(what())}`);
    await sleep(50);
  }
}

async function pushing(group, kind, got, failures = 0) {
  const made = new PushConsumer({
    ...where,
    consumerGroup: `${group}_${suffix}`,
    subscriptions: new Map([[topic(kind), "*"]]),
    messageListener: {
      async consume(one) {
        got.push({ at: Date.now(), body: one.body.toString(), group: one.messageGroup,
          attempt: one.deliveryAttempt });
        return one.deliveryAttempt <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await made.startup();
  return made;
}

const scenarios = {
  async grpc_send_and_simple_consumer() {
    const sender = await producer("NORMAL");
    const { messageId } = await sender.send(message("NORMAL", "hello",
      { tag: "t", keys: ["k"], properties: new Map([["colour", "red"]]) }));
    const consumer = new SimpleConsumer({
      ...where,
      consumerGroup: `simple_${suffix}`,
      subscriptions: new Map([[topic("NORMAL"), "t"]]),
      awaitDuration: 20_000,
    });
    await consumer.startup();
    const [one, ...rest] = await consumer.receive(10, 15_000);
    assert.deepStrictEqual(
      [one.messageId, one.body.toString(), one.tag, one.keys, one.properties.get("colour"), rest],
      [messageId, "hello", "t", ["k"], "red", []]);
    await consumer.changeInvisibleDuration(one, 20_000);
    await consumer.ack(one);
    await consumer.shutdown();
    await sender.shutdown();
    return messageId;
  },

  async grpc_push() {
    const sender = await producer("PUSH");
    const got = [];
    const consumer = await pushing("push", "PUSH", got);
    for (let number = 0; number < 50; number++) {
      await sender.send(message("PUSH", `${number}`));
    }
    await waitFor(() => got.length >= 50, () => got.length);
    // It waits for its open polls when it stops; the other scenarios leave their consumers.
    assert.equal(new Set(got.map(one => one.body)).size, 50);
    await consumer.shutdown();
    await sender.shutdown();
    return "50 messages";
  },

  async grpc_push_retries() {
    // This client knows no list of delays and asks for 0 ms; the server chooses how long it waits.
    const sender = await producer("RETRY");
    const got = [];
    await pushing("retry", "RETRY", got, 2);
    await sender.send(message("RETRY", "bad"));
    await waitFor(() => got.length >= 3, () => got);
    assert.deepStrictEqual(got.map(one => one.attempt), [1, 2, 3]);
    const gaps = [got[1].at - got[0].at, got[2].at - got[1].at];
    await sender.shutdown();
    return `${gaps[0]} ms, ${gaps[1]} ms`;
  },

  async grpc_fifo() {
    const sender = await producer("FIFO");
    const got = [];
    await pushing("fifo", "FIFO", got);
    await pushing("fifo", "FIFO", got);
    for (let number = 10; number < 50; number++) {
      await sender.send(message("FIFO", `${number}`, { messageGroup: `g${number % 4}` }));
    }
    await waitFor(() => got.length >= 40, () => got.length);
    for (const group of new Set(got.map(one => one.group))) {
      const bodies = got.filter(one => one.group === group).map(one => one.body);
      assert.deepStrictEqual(bodies, [...bodies].sort());
    }
    await sender.shutdown();
    return "4 groups, 2 consumers";
  },

  async grpc_delay_and_recall() {
    const sender = await producer("DELAY");
    const got = [];
    await pushing("delay", "DELAY", got);
    const at = Date.now() + 5000;
    const deliveryTimestamp = new Date(at);
    const recalled = await sender.send(message("DELAY", "recalled", { deliveryTimestamp }));
    await sender.send(message("DELAY", "kept", { deliveryTimestamp }));
    await sender.recallMessage(topic("DELAY"), recalled.recallHandle);
    await waitFor(() => got.length, () => got);
    const late = got[0].at - at;
    await sleep(2000);
    assert.deepStrictEqual(got.map(one => one.body), ["kept"]);
    assert(late >= -1000 && late < 5000, late);
    await sender.shutdown();
    return `${late} ms late`;
  },

  async grpc_transaction() {
    const asked = [];
    const sender = await producer("TRANSACTION", {
      checker: {
        async check(half) {
          asked.push(half.body.toString());
          return TransactionResolution.COMMIT;
        },
      },
    });
    const got = [];
    await pushing("transaction", "TRANSACTION", got);
    for (const decision of ["commit", "rollback", "undecided"]) {
      const open = sender.beginTransaction();
      await sender.send(message("TRANSACTION", decision), open);
      if (decision !== "undecided") {
        await open[decision]();
      }
    }
    await waitFor(() => got.length >= 2, () => got);
    assert.deepStrictEqual(got.map(one => one.body).sort(), ["commit", "undecided"]);
    assert.deepStrictEqual(asked, ["undecided"]);
    await sender.shutdown();
    return "one committed, one asked about";
  },

  async grpc_restart() {
    const sent = [];
    const got = [];
    const sender = await producer("RESTART");
    await pushing("restart", "RESTART", got);
    const end = Date.now() + 1000 * Number(process.env.INTEROP_SECONDS);
    console.log("running");
    for (let number = 0; Date.now() < end; number++) {
      await sender.send(message("RESTART", `${number}`)).then(() => sent.push(Date.now()), () => {});
      await sleep(100);
    }
    return JSON.stringify({ sent, got: got.map(one => one.at) });
  },
};

async function main() {
  for (const scenario of names) {
    const begun = Date.now();
    let status = "pass";
    let evidence;
    try {
      evidence = await scenarios[scenario]();
    } catch (error) {
      console.error(error);
      status = "fail";
      evidence = `${error}`;
    }
    const ms = Date.now() - begun;
    process.stdout.write(`${JSON.stringify({ scenario, status, evidence, ms })}\n`);
  }
  process.exit(0);
}

// A client that fails in the background must not hide the result of its scenario.
process.on("unhandledRejection", error => console.error(error));
main();
