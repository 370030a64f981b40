'use strict'

const { AsyncLocalStorage } = require('node:async_hooks')

const { isNode, load, runtime } = require('./addon')
const { Encoder, checkedFlags, lastValues, MAX_KEYS } = require('./encode')
const { records } = require('./records')
const { warnOnce } = require('./warn')

const SCHEMA = 'nodejs_v1_dev'

const isLinux = process.platform === 'linux'
const loaded = isLinux ? load() : {}
const addon = loaded.create === undefined ? records() : loaded
const encoder = new Encoder(addon.buffer)

/** The context of OpenTelemetry that the next context stands for. */
let bridged

class Context extends addon.Base {
  /** Size of the attributes, in bytes. */
  #size
  #isTruncated
  /** The context of OpenTelemetry that this one stands for. */
  #origin = undefined
  /** True if the program does not see it: it stands for none. */
  #isHidden = false

  constructor(traceId, spanId, traceFlags, attributes) {
    super()
    encoder.record(traceId, spanId, traceFlags, attributes)
    this.#size = encoder.size
    this.#isTruncated = encoder.isTruncated
    addon.create(this, encoder.size, bridged !== undefined)
    this.#origin = bridged
  }

  enter() {
    if (!(#size in this)) throw foreign()
    storage.enterWith(this)
  }

  run(fn) {
    if (!(#size in this)) throw foreign()
    return storage.run(this, fn)
  }

  append(attributes) {
    if (!(#size in this)) throw foreign()
    encoder.attributes(attributes, this)
    if (encoder.isTruncated) this.#isTruncated = true
    const { size } = encoder
    if (size === 0) return
    addon.append(this, size)
    this.#size += size
  }

  invalidate() {
    if (!(#size in this)) throw foreign()
    addon.invalidate(this)
  }

  setTraceFlags(traceFlags) {
    if (!(#size in this)) throw foreign()
    if (traceFlags === undefined) throw new TypeError('traceFlags is missing')
    addon.setTraceFlags(this, checkedFlags(traceFlags))
  }

  isTruncated() {
    if (!(#size in this)) throw foreign()
    return this.#isTruncated
  }

  debugBytes() {
    if (!(#size in this)) throw foreign()
    return addon.buffer.slice(0, addon.bytes(this))
  }

  // Functions of this module that need private members.
  static isContext(value) {
    return typeof value === 'object' && value !== null && #size in value
  }

  static sizeOf(context) {
    return context.#size
  }

  static originOf(context) {
    return context.#origin
  }

  /** Makes a context that stands for one of OpenTelemetry. */
  static bridge(origin, traceId, spanId, traceFlags) {
    bridged = origin
    try {
      return new Context(traceId, spanId, traceFlags)
    } finally {
      bridged = undefined
    }
  }

  /** Appends an attribute. If there is no room, its earlier values, and those of others, make room. */
  static setAttribute(context, index, value) {
    const values = []
    values[index] = value
    encoder.attributes(values, context)
    const replaces = encoder.size === 0
    if (replaces) {
      const all = lastValues(context.debugBytes())
      all[index] = value
      encoder.attributes(all, undefined)
    }
    if (encoder.isTruncated) context.#isTruncated = true
    const { size } = encoder
    addon.append(context, size, replaces)
    context.#size = replaces ? size : context.#size + size
  }

  static isHidden(context) {
    return #isHidden in context && context.#isHidden
  }

  static hide(context) {
    context.#isHidden = true
  }
}
const { isContext, sizeOf, originOf, bridge, setAttribute, isHidden, hide } = Context
const INTERNAL = ['isContext', 'sizeOf', 'originOf', 'bridge', 'setAttribute', 'isHidden', 'hide']
for (const name of INTERNAL) delete Context[name]
encoder.sizeOf = sizeOf
// Its objects are always made by the addon.
Object.preventExtensions(Context)

function foreign() {
  return new TypeError('the receiver is no Context')
}

let storage = new AsyncLocalStorage()
/** The reason why contexts cannot be published here; undefined if they can, and where nobody reads them. */
const reason = isLinux ? open() : undefined

/** Makes the addon publish the storage, if readers can follow it. Returns why not. */
function open() {
  if (loaded.create === undefined) return loaded.reason
  let failed
  try {
    const probe = new Context(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1))
    // The word with the context is where each of the values is found.
    for (let run = 0; run < 3 && failed === undefined; run++) {
      failed = storage.run({}, addon.noteFrame)
    }
    failed ??= storage.run(probe, () => addon.verify(storage, probe))
    if (failed === undefined) {
      // That of another copy of the package, if it was first.
      const published = addon.open(storage)
      if (published === undefined) failed = 'this environment is ending'
      else storage = published
    }
  } catch (error) {
    failed = String(error?.message ?? error)
  }
  if (failed !== undefined) {
    storage.disable()
    // Of a V8 that differs, nothing more is called.
    const { Base, ...functions } = records(addon.buffer)
    Object.assign(addon, functions)
  }
  return failed
}

function refusal() {
  return new Error(`otelctx cannot publish on ${runtime}: ${reason}${hint()}`)
}

/** Returns a hint: AsyncContextFrame is there from Node.js 22.7 on, and the default from 24 on. */
function hint() {
  if (!isNode) return ''
  if (/addons is disabled/.test(reason)) {
    return '; start it without --no-addons, or with --allow-addons'
  }
  const [major, minor] = process.versions.node.split('.').map(Number)
  if (major < 22 || (major === 22 && minor < 7)) return '; Node.js 22.7 or later is needed'
  const needsFlag = /AsyncContextFrame/.test(reason) && major < 24
  return needsFlag ? '; start it with --experimental-async-context-frame' : ''
}

let attachEnter = (context) => storage.enterWith(context)
let attachRun = (context, fn) => storage.run(context, fn)

/**
 * Replaces how contexts are attached; `enter` and `run` get the context, or undefined to detach one, `run` also the
 * function.
 */
function setAttach(enter, run) {
  attachEnter = enter
  attachRun = run
  const methods = {
    enter() {
      if (!isContext(this)) throw foreign()
      enter(this)
    },
    run(fn) {
      if (!isContext(this)) throw foreign()
      return run(this, fn)
    },
  }
  for (const [name, value] of Object.entries(methods)) {
    Object.defineProperty(Context.prototype, name, { value })
  }
}

if (reason !== undefined) {
  const refuse = () => {
    throw refusal()
  }
  setAttach(refuse, refuse)
} else if (!isLinux) {
  setAttach(
    () => {},
    (_, fn) => fn(),
  )
}
const publishes = isLinux && reason === undefined

/** Returns the context that is attached here, or undefined. */
function getContext() {
  const context = publishes ? storage.getStore() : undefined
  return context === undefined || isHidden(context) ? undefined : context
}

function checkContext(context) {
  if (context !== undefined && !isContext(context)) {
    throw new TypeError('context must be a Context or undefined')
  }
}

function setContext(context) {
  checkContext(context)
  if (context === undefined) clearContext()
  else context.enter()
}

function runWithContext(context, fn) {
  checkContext(context)
  return context === undefined ? runWithoutContext(fn) : context.run(fn)
}

function clearContext() {
  if (getContext() !== undefined) attachEnter(undefined)
}

function runWithoutContext(fn) {
  if (!publishes) return fn()
  if (getContext() !== undefined) return attachRun(undefined, fn)
  try {
    return fn()
  } finally {
    // `run` restores nothing if nothing changes at its start.
    clearContext()
  }
}

/** Number of names that this environment has announced by their positions. */
let announced = 0

function checkedNames(keys) {
  if (!Array.isArray(keys)) throw new TypeError('keys must be an array of names')
  // Nobody changes it while it is checked.
  const names = Array.from(keys)
  if (names.length > MAX_KEYS) {
    throw new RangeError(`there can be ${MAX_KEYS} keys, not ${names.length}`)
  }
  const all = new Set()
  for (const [index, name] of names.entries()) {
    if (typeof name !== 'string') throw new TypeError(`key ${index} must be a string`)
    if (name === '') throw new TypeError(`key ${index} is empty`)
    if (all.has(name)) throw new TypeError(`key ${index} repeats ${JSON.stringify(name)}`)
    all.add(name)
  }
  return names
}

/** Returns the indexes of names, which the process has as long as it runs. */
function indexesOf(names) {
  if (!publishes) return names.map((_, index) => index)
  const indexes = addon.registerKeys(names, false)
  if (addon.isPublished()) warnOfOther()
  return indexes
}

/** Delay after the first publication until another publisher is searched for, in ms: programs load tracers at their start. */
const SEARCH_DELAY = 2000

/** Warns once if another publisher has published a second process context. */
function warnOfOther() {
  if (addon.hasOther()) {
    warnOnce(
      'other',
      'another publisher in this process, such as a tracer, has published a second process context: readers use one of ' +
        'the two, and may not know the names of attributes',
    )
  }
}

/** Returns the attributes to publish for all names of the process. */
function processContextAttributes(names) {
  return Object.freeze({
    'threadlocal.schema_version': SCHEMA,
    'threadlocal.attribute_key_map': Object.freeze(publishes ? addon.keys() : names),
    ...addon.layout,
  })
}

function getProcessContextAttributes(keys) {
  if (reason !== undefined) throw refusal()
  const names = checkedNames(keys)
  if (names.length < announced) {
    throw new RangeError(`${announced} keys are announced: append keys, and keep the others`)
  }
  if (publishes) addon.registerKeys(names, true)
  announced = names.length
  return processContextAttributes(names)
}

class NamedContext {
  #indexes
  #processContextAttributes

  constructor(keys) {
    const names = checkedNames(keys)
    const indexes = indexesOf(names)
    this.#indexes = new Map(names.map((name, at) => [name, indexes[at]]))
    this.#processContextAttributes = processContextAttributes(names)
  }

  get processContextAttributes() {
    if (reason !== undefined) throw refusal()
    return this.#processContextAttributes
  }

  #attributes(named) {
    const values = []
    if (named === undefined || named === null) return values
    for (const name of Object.keys(named)) {
      const index = this.#indexes.get(name)
      if (index === undefined) throw new TypeError(`${JSON.stringify(name)} is none of the keys`)
      values[index] = named[name]
    }
    return values
  }

  build(traceId, spanId, traceFlags, attributes) {
    return new Context(traceId, spanId, traceFlags, this.#attributes(attributes))
  }

  enter(traceId, spanId, traceFlags, attributes) {
    const context = this.build(traceId, spanId, traceFlags, attributes)
    context.enter()
    return context
  }

  run(traceId, spanId, traceFlags, attributes, fn) {
    return this.build(traceId, spanId, traceFlags, attributes).run(fn)
  }

  append(context, attributes) {
    context.append(this.#attributes(attributes))
  }
}
Object.freeze(NamedContext.prototype)

function makeNamedContext(keys) {
  return new NamedContext(keys)
}

/** Publishes the process context, or replaces the one that was published. */
function publish(attributes) {
  if (reason !== undefined) throw refusal()
  const named = Object.entries({
    'telemetry.sdk.language': 'nodejs',
    'process.runtime.name': 'nodejs',
    'process.runtime.version': process.versions.node,
    'process.runtime.description': 'Node.js',
    ...attributes,
  }).filter(([, value]) => value !== undefined && value !== null)
  if (!publishes) return
  const isFirst = !addon.isPublished()
  addon.publish(named)
  if (isFirst) setTimeout(warnOfOther, SEARCH_DELAY).unref()
}

/** Ends the publication of all contexts that stand for one of OpenTelemetry, wherever they are attached. */
function invalidateBridged() {
  addon.invalidateBridged()
}

/** Returns whether the process has published a process context by this package. */
function isPublished() {
  return publishes && addon.isPublished()
}

module.exports = {
  Context,
  clearContext,
  getContext,
  bridge,
  getProcessContextAttributes,
  hide,
  indexesOf,
  invalidateBridged,
  isPublished,
  makeNamedContext,
  originOf,
  publish,
  reason,
  refusal,
  runWithContext,
  runWithoutContext,
  setAttach,
  setAttribute,
  setContext,
  storage,
}
