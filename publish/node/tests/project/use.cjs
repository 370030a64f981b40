'use strict'
// What each kind of import must give: uses the package as a program does. Writes the version of Node.js and its architecture.
const assert = require('node:assert')
const { readFileSync } = require('node:fs')

const NAMES = [
  'Context',
  'clearContext',
  'getContext',
  'getProcessContextAttributes',
  'makeNamedContext',
  'publish',
  'runWithContext',
  'runWithoutContext',
  'setContext',
  'unsupportedReason',
]

/** Whether this process has the mapping of a process context (OTEP 4719). */
function isPublished() {
  return readFileSync('/proc/self/maps', 'utf8').includes('OTEL_CTX')
}

function use(otelctx, isRegistered) {
  assert.deepStrictEqual(Object.keys(otelctx).sort(), NAMES)
  assert.strictEqual(otelctx.unsupportedReason, undefined)
  assert.strictEqual(isPublished(), isRegistered)
  otelctx.publish({ 'service.version': '1.2' })
  assert.strictEqual(isPublished(), true)
  const ids = [new Uint8Array(16).fill(1), new Uint8Array(8).fill(2)]
  const named = otelctx.makeNamedContext(['http.route', 'user.tier'])
  const context = named.build(...ids, 1, { 'http.route': '/cart' })
  assert.strictEqual(context.run(otelctx.getContext), context)
  const bytes = Buffer.from(context.debugBytes()).toString('hex')
  assert.strictEqual(bytes, `${'01'.repeat(16)}${'02'.repeat(8)}01010700${'0005'}${Buffer.from('/cart').toString('hex')}`)
  console.log(process.versions.node, process.arch)
}

module.exports = { isPublished, use }
