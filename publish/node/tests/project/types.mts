// Checked with TypeScript's strictest settings, and not run. What must be an error is marked.
import 'otelctx/register'
import {
  type AttributeValue,
  type Attributes,
  type NamedAttributes,
  type NamedContext,
  type ProcessContextAttributes,
  Context,
  clearContext,
  getContext,
  getProcessContextAttributes,
  makeNamedContext,
  publish,
  runWithContext,
  runWithoutContext,
  setContext,
  unsupportedReason,
} from 'otelctx'

const traceId = new Uint8Array(16)
const spanId = new Uint8Array(8)

const attributes: Attributes = ['/cart', undefined, null, 'gold']
const context: Context = new Context(traceId, spanId, 1, attributes)
new Context(traceId, spanId)
new Context(traceId, spanId, undefined, null)
const result: number = context.run(() => 1)
const later: Promise<string> = context.run(async () => 'x')
context.enter()
context.append(attributes)
context.invalidate()
context.setTraceFlags(1)
const truncated: boolean = context.isTruncated()
const bytes: Uint8Array = context.debugBytes()

const attached: Context | undefined = getContext()
setContext(attached)
setContext(undefined)
clearContext()
const sum: number = runWithContext(attached, () => 1) + runWithoutContext(() => 2)

const named: NamedContext<'http.route' | 'user.tier'> = makeNamedContext(['http.route', 'user.tier'])
const known: NamedAttributes<'http.route' | 'user.tier'> = { 'http.route': '/cart', 'user.tier': null }
named.append(named.build(traceId, spanId, 1, known), { 'user.tier': 'gold' })
named.enter(traceId, spanId, undefined, undefined)
const text: string = named.run(traceId, spanId, 1, known, () => 'x')
const names: readonly string[] = named.processContextAttributes['threadlocal.attribute_key_map']

const all: ProcessContextAttributes = getProcessContextAttributes(['http.route'])
const forOthers: { readonly [name: string]: unknown } = all
const schema: 'nodejs_v1_dev' = all['threadlocal.schema_version']
const sizes: number[] = [
  all['threadlocal.tagged_size'],
  all['threadlocal.js_map_table_offset'],
  all['threadlocal.js_object_record_offset'],
  all['threadlocal.ordered_hash_map_header_size'],
]
const value: AttributeValue = [1, 'x', true, 2n, new Uint8Array(1), [1]]
publish()
publish({ ports: value, absent: undefined })
const reason: string | undefined = unsupportedReason
const registered: Promise<object> = import('otelctx/register')

// @ts-expect-error: IDs are bytes.
new Context('0af7651916cd43dd8448eb211c80319c', spanId)
// @ts-expect-error: both are needed.
new Context(traceId)
// @ts-expect-error: values are strings.
context.append([1])
// @ts-expect-error: it is no key.
named.build(traceId, spanId, 1, { 'http.method': 'GET' })
// @ts-expect-error: it cannot be changed.
names.push('x')
// @ts-expect-error: it cannot be changed.
all['threadlocal.schema_version'] = 'nodejs_v1_dev'
// @ts-expect-error: a function has no value in a process context.
publish({ name: () => 1 })
// @ts-expect-error: null is none.
setContext(null)
// @ts-expect-error: a list is needed.
getProcessContextAttributes('http.route')

export { bytes, forOthers, later, reason, registered, result, schema, sizes, sum, text, truncated }
