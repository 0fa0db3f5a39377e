'use strict';

// Runs scenarios with a Node client and prints one JSON line for each.
//
// Usage: node scenarios.js LIBRARY NAMESRV BROKER SUFFIX PARALLEL SCENARIO...; with --list alone it prints the known names.

const { Lab, NotApplicable, sleep } = require('./lab');

const LIMIT = 120000;
const parts = { ...require('./sending'), ...require('./consuming'), ...require('./signing') };
const all = Object.fromEntries(Object.entries(parts).map(([ name, run ]) => [ `node_${name}`, run ]));

async function outcome(name, lab) {
  const began = Date.now();
  const found = { scenario: name };
  const late = sleep(LIMIT).then(() => { throw new Error(`not finished after ${LIMIT / 1000} s; ${lab.errors.slice(-3)}`); });
  late.catch(() => undefined);
  try {
    found.evidence = await Promise.race([ all[name](lab), late ]);
    found.status = 'pass';
  } catch (error) {
    found.status = error instanceof NotApplicable ? 'n/a' : 'fail';
    found.evidence = error.code === undefined ? String(error.message) : `CODE: ${error.code} DESC: ${error.message}`;
  }
  found.ms = Date.now() - began;
  await lab.close();
  return found;
}

async function main() {
  const [ library, namesrv, broker, suffix, parallel, ...names ] = process.argv.slice(2);
  if (library === '--list') {
    console.log(Object.keys(all).join('\n'));
    return;
  }
  const waiting = [ ...names ];
  const work = async () => {
    for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
      console.log(JSON.stringify(await outcome(name, new Lab(library, namesrv, broker, `${name}-${suffix}`))));
    }
  };
  await Promise.all(Array.from({ length: Number(parallel) }, work));
}

// A client error without a listener shows as the failure of the row that waits.
process.on('unhandledRejection', error => console.error(error));
process.on('uncaughtException', error => console.error(error));
main().then(() => process.exit(0));
