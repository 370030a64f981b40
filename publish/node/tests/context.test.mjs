// What a context is made of, and how it is attached.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createContext, runInContext } from 'node:vm'

import { decode, flags, otelctx, program, run, spanId, traceId } from './common.mjs'

const { Context } = otelctx
const make = (...attributes) => new Context(traceId, spanId, 1, attributes)

test('the bytes are those of the format', () => {
  assert.equal(otelctx.unsupportedReason, undefined)
  const bytes = make('/cart', 'GET').debugBytes()
  const expected = '0af7651916cd43dd8448eb211c80319c' + 'b7ad6b7169203331' + '0101' + '0c00'
  const attributes = '0005' + '2f63617274' + '0103' + '474554'
  assert.equal(Buffer.from(bytes).toString('hex'), expected + attributes)
  assert.equal(bytes.constructor, Uint8Array)
})

test('flags and attributes are optional', () => {
  for (const context of [
    new Context(traceId, spanId),
    new Context(traceId, spanId, undefined, undefined),
    new Context(traceId, spanId, 0, null),
    new Context(traceId, spanId, 0, []),
  ]) {
    const { flags, attributes, length, valid } = decode(context.debugBytes())
    assert.deepEqual([flags, attributes, length, valid], [0, [], 28, 1])
  }
  assert.equal(decode(new Context(traceId, spanId, 255).debugBytes()).flags, 255)
})

test('there are both IDs or none, and flags only with them', () => {
  for (const [name, trace, span] of [
    ['traceId', new Uint8Array(16), spanId],
    ['spanId', traceId, new Uint8Array(8)],
    ['traceId', new Uint8Array(16), new Uint8Array(8)],
  ]) {
    const message = `${name}: zero is not an ID; for attributes alone, give neither ID`
    assert.throws(() => new Context(trace, span, 1, ['x']), { name: 'RangeError', message })
  }
  const record = decode(new Context(undefined, undefined, 1, ['x']).debugBytes())
  assert.deepEqual(
    [record.traceId, record.spanId, record.flags, record.attributes, record.valid],
    ['0'.repeat(32), '0'.repeat(16), 0, [[0, 'x']], 1],
  )
})

test('a context without IDs is given no flags later', () => {
  const context = new Context(undefined, undefined, 0, ['x'])
  context.setTraceFlags(1)
  assert.equal(decode(context.debugBytes()).flags, 0)
})

test('values that are missing are skipped', () => {
  // biome-ignore lint/suspicious/noSparseArray: holes are what is tested
  const values = ['a', null, undefined, , '', 'f']
  const { attributes } = decode(new Context(traceId, spanId, 0, values).debugBytes())
  assert.deepEqual(attributes, [[0, 'a'], [4, ''], [5, 'f']])
})

test('a value is cut at 255 bytes, and never within a character', () => {
  for (const [value, kept] of [
    ['x'.repeat(255), 'x'.repeat(255)],
    ['x'.repeat(256), 'x'.repeat(255)],
    ['é'.repeat(128), 'é'.repeat(127)],
    [`x${'é'.repeat(127)}`, `x${'é'.repeat(127)}`],
    ['x'.repeat(254) + 'é', 'x'.repeat(254)],
    ['x'.repeat(252) + '😀', 'x'.repeat(252)],
    ['x'.repeat(251) + '😀', 'x'.repeat(251) + '😀'],
    ['日'.repeat(100), '日'.repeat(85)],
    ['a\0b', 'a\0b'],
    ['\ud800', '\ufffd'],
  ]) {
    const context = make(value)
    assert.deepEqual(decode(context.debugBytes()).attributes, [[0, kept]])
    assert.equal(context.isTruncated(), kept !== value && kept !== '\ufffd', kept)
  }
})

test('612 bytes are kept of all; what does not fit is skipped', () => {
  const full = make('a'.repeat(255), 'b'.repeat(255), 'c'.repeat(96))
  assert.equal(full.debugBytes().length, 640)
  assert.equal(full.isTruncated(), false)
  full.append([null, null, null, ''])
  assert.equal(full.isTruncated(), true)
  assert.equal(full.debugBytes().length, 640)

  const skipped = make('a'.repeat(255), 'b'.repeat(255), 'c'.repeat(97), 'd')
  const { attributes } = decode(skipped.debugBytes())
  assert.deepEqual(attributes.map(([key]) => key), [0, 1, 3])
  assert.equal(skipped.isTruncated(), true)
  skipped.append(['e'])
  assert.equal(skipped.isTruncated(), true)
})

test('attributes are appended, within the block and beyond it', () => {
  const context = make('a')
  const expected = [[0, 'a']]
  for (let size = 0; size < 30; size++) {
    const values = []
    values[size] = 'é'.repeat(size >> 2)
    context.append(values)
    expected.push([size, values[size]])
    assert.deepEqual(decode(context.debugBytes()).attributes, expected)
  }
  assert.equal(context.isTruncated(), false)
  for (const nothing of [undefined, null, [], [null]]) context.append(nothing)
  assert.deepEqual(decode(context.debugBytes()).attributes, expected)
})

test('flags and validity change in place', () => {
  const context = make('a')
  context.setTraceFlags(0x83)
  assert.equal(decode(context.debugBytes()).flags, 0x83)
  context.invalidate()
  context.invalidate()
  assert.equal(decode(context.debugBytes()).valid, 0)
  // It stays invalid when the record moves.
  context.append(['x'.repeat(200)])
  assert.equal(decode(context.debugBytes()).valid, 0)
})

test('wrong arguments are a TypeError', () => {
  const types = { name: 'TypeError' }
  const forged = Object.create(Uint8Array.prototype)
  const ids = [undefined, null, 'x'.repeat(16), 16, {}, [], traceId.subarray(1), Buffer.alloc(17)]
  ids.push(new Uint16Array(16), new DataView(new ArrayBuffer(16)), new ArrayBuffer(16), forged)
  ids.push(new Proxy(new Uint8Array(16), {}), { length: 16 })
  for (const id of ids) {
    assert.throws(() => new Context(id, spanId), types)
  }
  for (const id of [undefined, null, traceId, Buffer.alloc(7), forged]) {
    assert.throws(() => new Context(traceId, id), types)
  }
  for (const wrong of [-1, 256, 1.5, NaN, '1', true, 1n, {}]) {
    assert.throws(() => new Context(traceId, spanId, wrong), types)
    assert.throws(() => make().setTraceFlags(wrong), types)
  }
  assert.throws(() => make().setTraceFlags(), types)
  for (const wrong of ['a', 1, {}, new Map(), { 0: 'a', length: 1 }]) {
    assert.throws(() => new Context(traceId, spanId, 0, wrong), types)
    assert.throws(() => make().append(wrong), types)
  }
  for (const wrong of [1, {}, [], true, Symbol('x'), 1n]) {
    assert.throws(() => new Context(traceId, spanId, 0, [wrong]), types)
  }
  const tooMany = new Array(257)
  assert.throws(() => new Context(traceId, spanId, 0, tooMany), { name: 'RangeError' })
  assert.throws(() => Context(traceId, spanId), types)
  for (const wrong of [null, 1, 'x', {}, new Proxy(make(), {})]) {
    assert.throws(() => otelctx.setContext(wrong), types)
    assert.throws(() => otelctx.runWithContext(wrong, () => {}), types)
  }
  assert.equal(otelctx.getContext(), undefined)
})

test('a foreign receiver is a TypeError', () => {
  const context = make()
  const Base = Object.getPrototypeOf(Context)
  const receivers = [undefined, null, 1, {}, Object.create(Context.prototype), new Base()]
  receivers.push(Object.create(context), new Proxy(context, {}), new Map())
  receivers.push(Reflect.construct(Base, [], Context))
  const names = Object.getOwnPropertyNames(Context.prototype)
  const methods = names.filter((name) => name !== 'constructor').sort()
  assert.deepEqual(methods, [
    'append',
    'debugBytes',
    'enter',
    'invalidate',
    'isTruncated',
    'run',
    'setTraceFlags',
  ])
  for (const receiver of receivers) {
    for (const name of methods) {
      const method = Context.prototype[name]
      assert.throws(() => method.call(receiver, () => {}), { name: 'TypeError' }, name)
    }
  }
  assert.throws(() => Object.setPrototypeOf(Context, class {}), { name: 'TypeError' })
})

test('the addon itself rejects what is none of its objects', () => {
  const result = run([...flags, program('addon.js')])
  assert.equal(result.stderr, '')
  assert.equal(result.stdout, 'done\n')
  assert.equal(result.status, 0)
})

test('classes can extend it, and other realms can use it', () => {
  class Mine extends Context {
    constructor() {
      super(traceId, spanId, 1, ['mine'])
    }
  }
  const mine = new Mine()
  assert.deepEqual(decode(mine.debugBytes()).attributes, [[0, 'mine']])
  assert.equal(mine.run(otelctx.getContext), mine)
  const ids = runInContext('[new Uint8Array(16).fill(7), new Uint8Array(8).fill(7)]', createContext({}))
  assert.equal(decode(new Context(...ids).debugBytes()).traceId, '07'.repeat(16))
})

test('code that runs while arguments are read changes no other record', () => {
  const other = new Uint8Array(16).fill(9)
  const attributes = ['first', 'second']
  let inner
  Object.defineProperty(attributes, 1, {
    get() {
      inner = new Context(other, spanId, 0, ['inner'.repeat(20)])
      return 'second'
    },
  })
  const context = new Context(traceId, spanId, 1, attributes)
  assert.deepEqual(decode(context.debugBytes()).attributes, [[0, 'first'], [1, 'second']])
  assert.equal(decode(context.debugBytes()).traceId, traceId.toString('hex'))
  assert.equal(decode(inner.debugBytes()).traceId, '09'.repeat(16))

  const appended = make()
  const values = ['x'.repeat(250), 'y'.repeat(250)]
  Object.defineProperty(values, 0, {
    get() {
      appended.append(['z'.repeat(250)])
      return 'x'.repeat(250)
    },
  })
  appended.append(values)
  assert.ok(appended.debugBytes().length <= 640)
  assert.equal(appended.isTruncated(), true)

  let trap
  const Target = new Proxy(Context, {
    get(target, name) {
      if (name === 'prototype') trap = new Context(other, spanId)
      return Reflect.get(target, name)
    },
  })
  const built = Reflect.construct(Context, [traceId, spanId, 1, ['a']], Target)
  assert.equal(decode(built.debugBytes()).traceId, traceId.toString('hex'))
  assert.equal(decode(trap.debugBytes()).traceId, '09'.repeat(16))
})

test('run attaches, and restores what was attached', async () => {
  const [outer, inner] = [make('outer'), make('inner')]
  assert.equal(otelctx.getContext(), undefined)
  const result = outer.run(() => {
    assert.equal(otelctx.getContext(), outer)
    assert.throws(() => inner.run(() => { throw new Error('mine') }), /mine/)
    assert.equal(otelctx.getContext(), outer)
    otelctx.runWithoutContext(() => assert.equal(otelctx.getContext(), undefined))
    otelctx.runWithContext(undefined, () => assert.equal(otelctx.getContext(), undefined))
    otelctx.runWithContext(inner, () => assert.equal(otelctx.getContext(), inner))
    return 42
  })
  assert.equal(result, 42)
  assert.equal(otelctx.getContext(), undefined)
  await outer.run(async () => {
    await null
    assert.equal(otelctx.getContext(), outer)
    await new Promise((resolve) => setTimeout(resolve, 1))
    assert.equal(otelctx.getContext(), outer)
  })
})

test('enter attaches until it is replaced', async () => {
  const [one, two] = [make('one'), make('two')]
  await otelctx.runWithoutContext(async () => {
    one.enter()
    assert.equal(otelctx.getContext(), one)
    await null
    assert.equal(otelctx.getContext(), one)
    otelctx.setContext(two)
    assert.equal(otelctx.getContext(), two)
    otelctx.setContext(undefined)
    assert.equal(otelctx.getContext(), undefined)
    two.enter()
    otelctx.clearContext()
    otelctx.clearContext()
    assert.equal(otelctx.getContext(), undefined)
  })
  assert.equal(otelctx.getContext(), undefined)
})
