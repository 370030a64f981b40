// A module: by names, and all of it. Both kinds share one package.
import assert from 'node:assert'
import { createRequire } from 'node:module'
import * as otelctx from 'otelctx'
import { Context, publish } from 'otelctx'

import { use } from './use.cjs'

const required = createRequire(import.meta.url)('otelctx')
assert.strictEqual(Context, required.Context)
assert.strictEqual(publish, required.publish)
use(otelctx, process.argv[2] === 'registered')
