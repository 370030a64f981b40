'use strict'
// Checks arguments, and encodes records into the addon's buffer (OTEP 4947, "Thread Local Context Record").

const TRACE_ID_SIZE = 16
const SPAN_ID_SIZE = 8
const HEADER_SIZE = 28
const FLAGS_AT = 25
/** Largest size of a record's attributes, in bytes: every reader supports 640 with the header. */
const MAX_ATTRIBUTES = 612
/** Largest size of a value, in bytes. */
const MAX_VALUE = 255
/** An index is one byte. */
const MAX_KEYS = 256

// It returns 'Uint8Array' for a real one alone, also for one of another realm, and for a Buffer.
const typedArray = Object.getPrototypeOf(Uint8Array.prototype)
const tag = Object.getOwnPropertyDescriptor(typedArray, Symbol.toStringTag).get
const typeOfArray = Function.prototype.call.bind(tag)
// A class that extends it can have a property `length` of its own.
const length = Object.getOwnPropertyDescriptor(typedArray, 'length').get
const lengthOf = Function.prototype.call.bind(length)

/** The result of `encodeAttributes`: their size in bytes, and whether something was cut or omitted. */
class Encoder {
  /** @param {Uint8Array} buffer */
  constructor(buffer) {
    this.buffer = buffer
    this.size = 0
    this.isTruncated = false
    // Counts the encodings: a getter of the caller's may start another one.
    this.count = 0
    this.utf8 = new TextEncoder()
    /** Size of a context's attributes, in bytes. */
    this.sizeOf = () => 0
  }

  /** Writes a record, but for what the addon completes. */
  record(traceId, spanId, traceFlags, attributes) {
    // The attributes first: they can run code of the caller's, which may encode another record.
    this.attributes(attributes, undefined)
    const { buffer } = this
    if (traceId === undefined && spanId === undefined) {
      checkedFlags(traceFlags)
      buffer.fill(0, 0, HEADER_SIZE)
      return
    }
    if (typeOfArray(traceId) !== 'Uint8Array' || lengthOf(traceId) !== TRACE_ID_SIZE) {
      throw new TypeError('traceId must be a Uint8Array of 16 bytes')
    }
    if (typeOfArray(spanId) !== 'Uint8Array' || lengthOf(spanId) !== SPAN_ID_SIZE) {
      throw new TypeError('spanId must be a Uint8Array of 8 bytes')
    }
    let trace = 0
    for (let at = 0; at < TRACE_ID_SIZE; at++) trace |= buffer[at] = traceId[at]
    let span = 0
    for (let at = 0; at < SPAN_ID_SIZE; at++) {
      span |= buffer[TRACE_ID_SIZE + at] = spanId[at]
    }
    if (trace === 0) throw zero('traceId')
    if (span === 0) throw zero('spanId')
    buffer[FLAGS_AT] = checkedFlags(traceFlags)
  }

  /** Writes attributes behind the header, to be appended to those of a context, if there is one. */
  attributes(values, context) {
    const count = ++this.count
    this.size = 0
    this.isTruncated = false
    if (values === undefined || values === null) return
    if (!Array.isArray(values)) throw new TypeError('attributes must be an array')
    const keys = values.length
    if (keys > MAX_KEYS) throw new RangeError(`there can be ${MAX_KEYS} attributes, not ${keys}`)
    for (let key = 0; key < keys; key++) {
      const value = values[key]
      if (value === undefined || value === null) continue
      if (typeof value !== 'string') {
        throw new TypeError(`attribute ${key} must be a string, not ${typeof value}`)
      }
      // A getter of the caller's may just have appended to the context.
      const used = context === undefined ? 0 : this.sizeOf(context)
      this.attribute(key, value, MAX_ATTRIBUTES - used)
    }
    // Values that are copied run no code: this happens once.
    if (this.count !== count) this.attributes(Array.from(values), context)
  }

  attribute(key, value, room) {
    const { buffer, size } = this
    const start = HEADER_SIZE + size + 2
    const length = value.length < MAX_VALUE ? value.length : MAX_VALUE
    let written = 0
    let isCut = value.length > MAX_VALUE
    // A character of ASCII is a byte.
    while (written < length) {
      const code = value.charCodeAt(written)
      if (code > 127) break
      buffer[start + written++] = code
    }
    if (written < length) {
      // It writes whole characters.
      const result = this.utf8.encodeInto(value, buffer.subarray(start, start + MAX_VALUE))
      written = result.written
      isCut = result.read < value.length
    }
    if (size + 2 + written > room) {
      this.isTruncated = true
      return
    }
    if (isCut) this.isTruncated = true
    buffer[start - 2] = key
    buffer[start - 1] = written
    this.size = size + 2 + written
  }
}

function zero(name) {
  return new RangeError(`${name}: zero is not an ID; for attributes alone, give neither ID`)
}

/** Trace flags, after a check. */
function checkedFlags(flags) {
  if (flags === undefined || flags === null) return 0
  if (typeof flags !== 'number' || (flags & 0xff) !== flags) {
    throw new TypeError('traceFlags must be an integer from 0 to 255')
  }
  return flags
}

/** The last value of each attribute of a record, by its index. */
function lastValues(record) {
  const bytes = Buffer.from(record.buffer, record.byteOffset, record.length)
  const values = []
  for (let at = HEADER_SIZE; at < bytes.length; ) {
    const end = at + 2 + bytes[at + 1]
    values[bytes[at]] = bytes.toString('utf8', at + 2, end)
    at = end
  }
  return values
}

module.exports = { Encoder, checkedFlags, lastValues, MAX_KEYS }
