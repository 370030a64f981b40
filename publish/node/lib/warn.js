'use strict'
// Tells the program what is not published.

const { getEnvironmentData, setEnvironmentData } = require('node:worker_threads')

/** Warns, once for each kind in this thread and in the workers that it starts from then on. */
function warnOnce(kind, message) {
  const key = `otelctx: ${kind}`
  if (getEnvironmentData(key)) return
  setEnvironmentData(key, true)
  process.emitWarning(message, { code: 'OTELCTX' })
}

module.exports = { warnOnce }
