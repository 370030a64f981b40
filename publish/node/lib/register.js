'use strict'
// Publishes the spans of OpenTelemetry: node --import otelctx/register app.js

const workers = require('./workers')
const { reason, refusal } = require('./context')

const { warnOnce } = require('./warn')

if (reason !== undefined) {
  warnOnce('refusal', refusal().message)
} else if (process.platform === 'linux') {
  try {
    require('./opentelemetry').install()
    workers.install(__filename)
  } catch (error) {
    // Another publisher may have been first, or the resource be too long. The program must run all the same.
    warnOnce('register', `otelctx publishes no spans: ${error.message}`)
  }
}
