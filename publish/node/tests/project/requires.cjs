'use strict'
// CommonJS.
const { use } = require('./use.cjs')

use(require('otelctx'), process.argv[2] === 'registered')
