'use strict'
// Publishes the spans of OpenTelemetry: node --import otelctx/register app.js

const workers = require('./workers')
const { reason, refusal } = require('./context')

if (reason !== undefined) {
  process.emitWarning(refusal().message, { code: 'OTELCTX' })
} else if (process.platform === 'linux') {
  require('./opentelemetry').install()
  workers.install(__filename)
}
