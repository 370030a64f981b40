'use strict'
// Stands in for the addon where there is none: records that no reader can find.

const HEADER_SIZE = 28
/** The IDs are before it. */
const SPAN_ID_END = 24
const BUFFER_SIZE = 897

/** The functions of the addon that contexts use, for records that are written to `buffer`. */
function records(buffer = new Uint8Array(BUFFER_SIZE)) {
  /** @type {WeakMap<object, Uint8Array>} */
  const all = new WeakMap()
  const recordOf = (context) => {
    const record = all.get(context)
    if (record === undefined) throw new TypeError('not a Context')
    return record
  }
  const setSize = (record) => {
    new DataView(record.buffer).setUint16(26, record.length - HEADER_SIZE, true)
  }
  return {
    buffer,
    Base: class {},
    create(context, size) {
      const record = buffer.slice(0, HEADER_SIZE + size)
      record[24] = 1
      setSize(record)
      all.set(context, record)
    },
    append(context, size, replaces) {
      const record = recordOf(context)
      const kept = replaces ? record.subarray(0, HEADER_SIZE) : record
      const longer = new Uint8Array(kept.length + size)
      longer.set(kept)
      longer.set(buffer.subarray(HEADER_SIZE, HEADER_SIZE + size), kept.length)
      setSize(longer)
      all.set(context, longer)
    },
    invalidate(context) {
      recordOf(context)[24] = 0
    },
    // Nobody reads them.
    invalidateBridged() {},
    setTraceFlags(context, flags) {
      const record = recordOf(context)
      const hasSpan = record.subarray(0, SPAN_ID_END).some((byte) => byte !== 0)
      if (hasSpan) record[25] = flags
    },
    bytes(context) {
      const record = recordOf(context)
      buffer.set(record)
      return record.length
    },
  }
}

module.exports = { records }
