'use strict';

// The harness creates the topics of these scenarios and gives the key.

const { awaitBodies, check, texts } = require('./lab');

async function signed(lab) {
  const topic = lab.name('topic');
  const producer = await lab.producer();
  await lab.sendTexts(producer, topic, texts(10, 'before'));
  const { got } = await lab.consumer(lab.name('group'), topic, '*');
  await awaitBodies(got, texts(10, 'before'), lab);
  await lab.sendTexts(producer, topic, texts(10, 'after'));
  await awaitBodies(got, [ ...texts(10, 'before'), ...texts(10, 'after') ], lab);
  return '10 sent before and 10 after the consumer started, each received once';
}

async function wrongKey(lab) {
  const topic = lab.name('topic');
  const producer = await lab.producer();
  let refusal = null;
  try {
    await lab.send(producer, lab.message(topic, 'tag', 'refused'));
  } catch (error) {
    refusal = error;
  }
  check(refusal !== null, 'a message was sent with a wrong key');
  return `CODE: ${refusal.code} DESC: ${refusal.message}; errors: ${lab.errors}`;
}

module.exports = {
  signed,
  wrong_key: wrongKey,
};
