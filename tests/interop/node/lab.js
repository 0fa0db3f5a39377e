'use strict';

// The environment of a scenario: unique names, clients that are closed after it, and helpers to inspect and wait.

const util = require('util');

const PATIENCE = 50000;
let clients = 0;

class Failed extends Error {}
class NotApplicable extends Error {}

function check(holds, otherwise) {
  if (!holds) {
    throw new Failed(otherwise);
  }
}

function same(expected, found, what) {
  const [wanted, seen] = [JSON.stringify(expected), JSON.stringify(found)];
  check(wanted === seen, `${what}: expected ${wanted}, found ${seen}`);
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

async function until(condition, what, patience = PATIENCE) {
  const deadline = Date.now() + patience;
  while (!(await condition())) {
    check(Date.now() < deadline, `after ${patience / 1000} s: ${what()}`);
    await sleep(20);
  }
}

const texts = (count, prefix) => Array.from({ length: count }, (_, at) => `${prefix}-${at}`);

class Lab {
  /** library: the name of the package; both have the same classes, the older one uses generators instead of promises. */
  constructor(library, namesrv, broker, unique) {
    this.library = library;
    this.module = require(library);
    this.namesrv = namesrv;
    this.broker = broker;
    this.unique = unique;
    this.errors = [];
    this.closing = [];
  }

  name(role) {
    return `${role}-${this.unique}`;
  }

  options(more) {
    const quiet = () => {};
    const note = error => this.errors.push(String((error && error.message) || error));
    return {
      nameSrv: this.namesrv,
      namesrvAddr: this.namesrv,
      httpclient: { request: () => { throw new Error('the client must not request an address over HTTP'); } },
      accessKey: process.env.INTEROP_ACCESS_KEY || 'access', // these clients sign every request
      secretKey: process.env.INTEROP_SECRET_KEY || 'secret',
      instanceName: `i${++clients}-${this.unique}`,
      pollNameServerInteval: 2000,
      rebalanceInterval: 1000,
      logger: { info: quiet, debug: quiet, warn: quiet, error: note },
      ...more,
    };
  }

  async producer(more = {}) {
    const producer = new this.module.Producer(this.options({ producerGroup: this.name('producer'), ...more }));
    producer.on('error', error => this.errors.push(error.message));
    await new Promise(resolve => producer.ready(resolve));
    this.closing.push(() => this.call(producer, 'close'));
    return producer;
  }

  /** Call a method that returns a promise in one package and is a wrapped generator in the other. */
  call(object, method, ...values) {
    if (this.library === 'rocketmq') {
      return require('co')(object[method](...values));
    }
    return object[method](...values);
  }

  message(topic, tag, body) {
    return new this.module.Message(topic, tag, body);
  }

  send(producer, message) {
    return this.call(producer, 'send', message);
  }

  async sendTexts(producer, topic, bodies) {
    for (const body of bodies) {
      await this.send(producer, this.message(topic, 'tag', body));
    }
  }

  /** Create a topic with the client's own call and wait for its route. */
  async topic(role, queues) {
    const topic = this.name(role);
    const producer = await this.producer({ producerGroup: this.name(`maker${++clients}`) });
    await this.call(producer._mqClient, 'createTopic', this.broker, 'TBW102', {
      topicName: topic,
      readQueueNums: queues,
      writeQueueNums: queues,
      perm: 6,
      topicFilterType: 'SINGLE_TAG',
      topicSysFlag: 0,
      order: false,
    }, 5000);
    await until(() => this.hasRoute(producer, topic), () => `no route for ${topic}`, 10000);
    return topic;
  }

  async hasRoute(producer, topic) {
    try {
      const route = await this.call(producer._mqClient, 'getTopicRouteInfoFromNameServer', topic, 3000);
      return route.queueDatas.length > 0;
    } catch (error) {
      return false;
    }
  }

  /** A consumer that has joined its group; messages are recorded and passed to the listener. */
  async consumer(group, topic, filter, listener = () => undefined, more = {}) {
    const consumer = new this.module.Consumer(this.options({
      consumerGroup: group,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
      ...more,
    }));
    consumer.on('error', error => this.errors.push(error.message));
    const got = [];
    const handle = async (message, queue) => {
      got.push(message);
      return listener(message, queue);
    };
    const handler = this.library === 'rocketmq' ? function* (message, queue) { return yield handle(message, queue); } : handle;
    consumer.subscribe(topic, filter, handler);
    await new Promise(resolve => consumer.ready(resolve));
    let open = true;
    const close = async () => {
      if (open) {
        open = false;
        await this.call(consumer, 'close');
      }
    };
    this.closing.push(close);
    return { consumer, got, close };
  }

  async close() {
    for (const close of this.closing.reverse()) {
      await Promise.race([ close().catch(() => undefined), sleep(3000) ]);
    }
  }
}

const bodies = got => got.map(message => message.body.toString());

async function awaitBodies(got, expected, lab) {
  await until(() => got.length >= expected.length,
    () => `${got.length} of ${expected.length} arrived; errors: ${util.inspect(lab.errors.slice(-3))}`);
  same([ ...expected ].sort(), bodies(got).sort(), 'bodies');
}

module.exports = { Lab, Failed, NotApplicable, awaitBodies, bodies, check, same, sleep, texts, until };
