'use strict';

const { NotApplicable, awaitBodies, bodies, check, same, sleep, texts, until } = require('./lab');

async function pushConcurrent(lab) {
  const topic = await lab.topic('push', 4);
  const producer = await lab.producer();
  await lab.sendTexts(producer, topic, texts(50, 'before'));
  const { got } = await lab.consumer(lab.name('group'), topic, '*');
  await awaitBodies(got, texts(50, 'before'), lab);
  await lab.sendTexts(producer, topic, texts(50, 'after'));
  await awaitBodies(got, [ ...texts(50, 'before'), ...texts(50, 'after') ], lab);
  return '50 from before and 50 from after the start, each once';
}

async function pushTags(lab) {
  const topic = await lab.topic('tags', 2);
  const producer = await lab.producer();
  const { got } = await lab.consumer(lab.name('group'), topic, 'red || green');
  for (const [ at, tag ] of [ 'red', 'blue', 'green', 'red' ].entries()) {
    await lab.send(producer, lab.message(topic, tag, `${tag}-${at}`));
  }
  await awaitBodies(got, [ 'red-0', 'green-2', 'red-3' ], lab);
  await sleep(1000); // time for messages that must not arrive
  same(3, got.length, 'messages');
  return '3 of 4 arrived';
}

async function pushSql92(lab) {
  if (lab.library === 'rocketmq') {
    throw new NotApplicable('this client has no SQL92 filters');
  }
  const topic = await lab.topic('sql', 2);
  const producer = await lab.producer();
  const filter = { expressionType: 'SQL92', subString: 'age > 17' };
  const { got } = await lab.consumer(lab.name('group'), topic, filter);
  for (const age of [ 16, 17, 18, 19 ]) {
    const message = lab.message(topic, 'tag', `age-${age}`);
    message.properties.age = age;
    await lab.send(producer, message);
  }
  await awaitBodies(got, [ 'age-18', 'age-19' ], lab);
  return '2 of 4 arrived';
}

async function pushBroadcast(lab) {
  const topic = await lab.topic('broadcast', 4);
  const group = lab.name('group');
  const one = await lab.consumer(group, topic, '*', undefined, { isBroadcast: true });
  const two = await lab.consumer(group, topic, '*', undefined, { isBroadcast: true });
  await lab.sendTexts(await lab.producer(), topic, texts(40, 'm'));
  await awaitBodies(one.got, texts(40, 'm'), lab);
  await awaitBodies(two.got, texts(40, 'm'), lab);
  return 'all 40 to both';
}

const queuesOf = got => new Set(got.map(message => message.queueId)).size;

async function pushRebalance(lab) {
  const topic = await lab.topic('rebalance', 8);
  const group = lab.name('group');
  const producer = await lab.producer();
  const one = await lab.consumer(group, topic, '*');
  await lab.sendTexts(producer, topic, texts(32, 'a'));
  await awaitBodies(one.got, texts(32, 'a'), lab);
  same(8, queuesOf(one.got), 'queues of one consumer alone');
  const two = await lab.consumer(group, topic, '*');
  let round = 0;
  const held = queues => async () => {
    await lab.sendTexts(producer, topic, texts(8, `probe${++round}`));
    await sleep(300);
    return queuesOf(two.got) === queues;
  };
  await until(held(4), () => `the second holds ${queuesOf(two.got)}`);
  await sleep(2500); // the first releases its half at its next rebalance
  one.got.length = two.got.length = 0;
  await lab.sendTexts(producer, topic, texts(32, 'b'));
  await until(() => one.got.length + two.got.length >= 32, () => `${one.got.length} and ${two.got.length} arrived`);
  same([ 4, 4 ], [ queuesOf(one.got), queuesOf(two.got) ], 'queues');
  await one.close();
  await until(held(8), () => `the second holds ${queuesOf(two.got)}`);
  return '8 queues, then 4 and 4, then 8 again';
}

async function pushRestart(lab) {
  const topic = await lab.topic('restart', 4);
  const group = lab.name('group');
  const producer = await lab.producer();
  await lab.sendTexts(producer, topic, texts(40, 'a'));
  const first = await lab.consumer(group, topic, '*');
  await awaitBodies(first.got, texts(40, 'a'), lab);
  await sleep(200); // the last message is acknowledged after its handler
  await first.close();
  await lab.sendTexts(producer, topic, texts(40, 'b'));
  const second = await lab.consumer(group, topic, '*');
  await awaitBodies(second.got, texts(40, 'b'), lab);
  return 'the next consumer continues where the first stopped';
}

async function pushInOrder(lab) {
  const topic = await lab.topic('order', 1);
  await lab.sendTexts(await lab.producer(), topic, texts(50, 'm'));
  const { got } = await lab.consumer(lab.name('group'), topic, '*');
  await until(() => got.length >= 50, () => `${got.length} of 50 arrived`);
  same(texts(50, 'm'), bodies(got), 'order within a queue');
  return '50 of one queue in order';
}

/** Create the group's retry topic before the consumer under test looks for it. */
async function introduce(lab, group, topic) {
  const first = await lab.consumer(group, topic, '*');
  const producer = await lab.producer({ producerGroup: lab.name('looking') });
  await until(() => lab.hasRoute(producer, `%RETRY%${group}`), () => 'no retry topic', 20000);
  await first.close();
}

async function retryToSuccess(lab) {
  const topic = await lab.topic('retry', 1);
  const group = lab.name('group');
  await introduce(lab, group, topic);
  const attempts = [];
  await lab.consumer(group, topic, '*', message => {
    attempts.push(message.reconsumeTimes);
    if (message.reconsumeTimes === 0) {
      throw new Error('not yet');
    }
  });
  const message = lab.message(topic, 'tag', 'again');
  message.keys = [ 'key' ];
  await lab.send(await lab.producer(), message);
  await until(() => attempts.length >= 2, () => `attempts ${attempts}; ${lab.errors.slice(-2)}`, 90000);
  same([ 0, 1 ], attempts, 'attempts');
  return 'failed once, redelivered from the retry topic';
}

async function retryToDeadLetters(lab) {
  if (lab.library === 'rocketmq') {
    throw new NotApplicable('this client retries locally and sends nothing back');
  }
  const topic = await lab.topic('dead', 1);
  const group = lab.name('group');
  await introduce(lab, group, topic);
  const attempts = [];
  await lab.consumer(group, topic, '*', message => {
    attempts.push(message.reconsumeTimes);
    throw new Error('never');
  }, { maxReconsumeTimes: 1 });
  const producer = await lab.producer();
  await lab.send(producer, lab.message(topic, 'tag', 'doomed'));
  const dead = `%DLQ%${group}`;
  await until(() => lab.hasRoute(producer, dead), () => `attempts ${attempts}; ${lab.errors.slice(-2)}`, 90000);
  same([ 0, 1 ], attempts, 'attempts');
  await lab.call(producer._mqClient, 'createTopic', lab.broker, 'TBW102', {
    topicName: dead, readQueueNums: 1, writeQueueNums: 1, perm: 6, topicFilterType: 'SINGLE_TAG', topicSysFlag: 0, order: false,
  }, 5000);
  const reader = await lab.consumer(lab.name('reader'), dead, '*');
  await awaitBodies(reader.got, [ 'doomed' ], lab);
  same(topic, reader.got[0].retryTopic, 'RETRY_TOPIC');
  check(reader.got[0].originMessageId, 'no ORIGIN_MESSAGE_ID');
  return `attempts ${attempts}, then in ${dead}`;
}

async function delayLevels(lab) {
  const topic = await lab.topic('delay', 2);
  const arrived = {};
  const { got } = await lab.consumer(lab.name('group'), topic, '*', message => {
    arrived[message.body.toString()] = Date.now();
  });
  const producer = await lab.producer();
  const seconds = [ 0, 1, 5 ];
  const sent = [];
  for (const level of seconds.keys()) {
    const message = lab.message(topic, 'tag', `level-${level}`);
    if (level) {
      message.delayTimeLevel = level;
    }
    sent[level] = Date.now();
    await lab.send(producer, message);
  }
  await until(() => got.length >= 3, () => `${bodies(got)} arrived`);
  const waited = seconds.map((_, level) => arrived[`level-${level}`] - sent[level]);
  seconds.forEach((delay, level) => check(waited[level] >= delay * 1000, `level ${level} arrived after ${waited[level]} ms`));
  return `after ${waited.join(', ')} ms`;
}

module.exports = {
  push_concurrent: pushConcurrent,
  push_tags: pushTags,
  push_sql92: pushSql92,
  push_broadcast: pushBroadcast,
  push_rebalance: pushRebalance,
  push_restart: pushRestart,
  push_in_order: pushInOrder,
  retry_to_success: retryToSuccess,
  retry_to_dead_letters: retryToDeadLetters,
  delay_levels: delayLevels,
};
