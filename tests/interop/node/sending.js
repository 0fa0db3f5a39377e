'use strict';

const { NotApplicable, awaitBodies, bodies, check, same, sleep, texts, until } = require('./lab');

async function sendSync(lab) {
  const topic = await lab.topic('sync', 2);
  const producer = await lab.producer();
  const results = new Map();
  for (let number = 0; number < 10; number++) {
    const message = lab.message(topic, `tag-${number % 2}`, `body-${number}`);
    message.keys = [ `key-${number}`, 'shared' ];
    message.properties.colour = `grün-${number}`;
    message.flag = number;
    const result = await lab.send(producer, message);
    same('SEND_OK', result.sendStatus, 'status');
    results.set(`body-${number}`, result);
  }
  const { got } = await lab.consumer(lab.name('group'), topic, '*');
  await awaitBodies(got, texts(10, 'body'), lab);
  for (const message of got) {
    const number = Number(message.body.toString().slice(5));
    const result = results.get(`body-${number}`);
    same([ `tag-${number % 2}`, `key-${number} shared`, `grün-${number}`, number ],
      [ message.tags, message.keys, message.properties.colour, message.flag ], 'tag, keys, property and flag');
    same([ result.msgId, result.queueOffset ], [ message.msgId, message.queueOffset ], 'id and offset');
    same(Number(result.messageQueue.queueId), message.queueId, 'queue');
  }
  return '10 read back with keys, tag, property, flag, id and offset as in the results';
}

async function sendBig(lab) {
  const topic = await lab.topic('big', 1);
  const producer = await lab.producer();
  const text = 'a text that repeats itself; '.repeat(40000);
  const noise = require('crypto').randomBytes(600000);
  await lab.send(producer, lab.message(topic, 'tag', text));
  await lab.send(producer, lab.message(topic, 'tag', noise));
  const { got } = await lab.consumer(lab.name('group'), topic, '*');
  await until(() => got.length >= 2, () => `${got.length} of 2 arrived`);
  check(got[0].body.toString() === text, 'the text differs');
  check(got[1].body.equals(noise), 'the noise differs');
  check(got[0].storeSize < 50000, `1.1 MB of text took ${got[0].storeSize} bytes`);
  return `1.1 MB of text stored in ${got[0].storeSize} bytes, 600 KB of random bytes`;
}

async function sendTooBig(lab) {
  const topic = await lab.topic('too-big', 1);
  const producer = await lab.producer();
  const noise = require('crypto').randomBytes(5 << 20);
  let refusal = null;
  try {
    await lab.send(producer, lab.message(topic, 'tag', noise));
  } catch (error) {
    refusal = error;
  }
  check(refusal !== null && refusal.code === 13, `5 MiB: ${refusal}`);
  await lab.sendTexts(producer, topic, [ 'after' ]);
  const { got } = await lab.consumer(lab.name('group'), topic, '*');
  await awaitBodies(got, [ 'after' ], lab);
  return `refused with 13: ${refusal.message}`;
}

async function sendAutoCreate(lab) {
  const topic = lab.name('new');
  const producer = await lab.producer();
  let result;
  try {
    result = await lab.send(producer, lab.message(topic, 'tag', 'first'));
  } catch (error) {
    // The client gives up when the topic has no route, before it asks for the template's route.
    check(error.code === 17, `neither created nor unknown: ${error}`);
    throw new NotApplicable('this client sends only to existing topics');
  }
  same('SEND_OK', result.sendStatus, 'status');
  return 'the first message created the topic';
}

async function sendShardingKey(lab) {
  const topic = await lab.topic('sharding', 4);
  const producer = await lab.producer();
  const queues = new Map();
  for (let number = 0; number < 20; number++) {
    const message = lab.message(topic, 'tag', `m-${number}`);
    if (!('shardingKey' in message)) {
      throw new NotApplicable('this client has no sharding keys');
    }
    message.shardingKey = `key${number % 5}`;
    const result = await lab.send(producer, message);
    const place = String(result.messageQueue.queueId);
    // A bug in the client: if the hash gives queue 0, it uses any queue.
    queues.set(message.shardingKey, (queues.get(message.shardingKey) || new Set()).add(place));
  }
  check([ ...queues.values() ].some(places => places.size === 1), 'no key stays in one queue');
  const { got } = await lab.consumer(lab.name('group'), topic, '*');
  await awaitBodies(got, texts(20, 'm'), lab);
  for (const message of got) {
    same(`key${Number(message.body.toString().slice(2)) % 5}`, message.shardingKey, 'sharding key');
  }
  return '20 messages with sharding keys';
}

async function transaction(lab) {
  const topic = await lab.topic('transaction', 1);
  const producer = await lab.producer();
  const { got } = await lab.consumer(lab.name('group'), topic, '*');
  const message = lab.message(topic, 'tag', 'half');
  message.properties.TRAN_MSG = 'true';
  const info = await lab.call(producer, 'tryToFindTopicPublishInfo', topic);
  // Its send() hides the broker's response code; the call below it returns the code.
  await lab.call(producer, 'sendKernelImpl', message, info.selectOneMessageQueue());
  await sleep(2000);
  same([], bodies(got), 'messages delivered from a half message');
  return 'a half message is kept back; the client cannot end a transaction';
}

module.exports = {
  send_sync: sendSync,
  send_big: sendBig,
  send_too_big: sendTooBig,
  send_auto_create: sendAutoCreate,
  send_sharding_key: sendShardingKey,
  transaction,
};
