'use strict'
// Calls the addon's functions with what is not theirs.
const assert = require('node:assert')
const path = require('node:path')

const folder = path.join(process.env.OTELCTX_PACKAGE, 'prebuilds/linux-x64-gnu')
const addon = require(path.join(folder, 'otelctx.node'))

const types = { name: 'TypeError' }
const foreign = [undefined, null, 1, 'x', {}, [], Symbol('x'), () => {}, new Map(), new addon.Base()]
foreign.push(Object.create(new addon.Base()), new Proxy(new addon.Base(), {}))
for (const object of foreign) {
  for (const name of ['append', 'invalidate', 'setTraceFlags', 'bytes']) {
    assert.throws(() => addon[name](object, 0), types, name)
    assert.throws(() => addon[name](object), types, name)
    assert.throws(() => addon[name](), types, name)
  }
  if (!(object instanceof addon.Base) || object === foreign.at(-1)) {
    assert.throws(() => addon.create(object, 0), types)
  }
}
const context = new addon.Base()
for (const size of [-1, 613, 2 ** 32 - 1, 'x', null, undefined]) {
  assert.throws(() => addon.create(context, size), types, String(size))
}
addon.create(context, 612)
// It has a record already.
assert.throws(() => addon.create(context, 0), types)
assert.strictEqual(addon.bytes(context), 640)
assert.throws(() => addon.append(context, 1), types)
assert.throws(() => addon.setTraceFlags(context, 256), types)
assert.throws(() => addon.registerKeys(), Error)
assert.throws(() => addon.registerKeys([1]), Error)
assert.throws(() => addon.publish(), Error)
assert.throws(() => addon.publish([[1, 2]]), Error)
assert.throws(() => addon.publish([['a', Symbol('x')]]), Error)
const cyclic = []
cyclic.push(cyclic)
assert.throws(() => addon.publish([['a', cyclic]]), Error)
for (const value of [undefined, 1, {}]) assert.ok(!addon.open(value))
assert.throws(() => addon.verify(1, 2), types)
console.log('done')
