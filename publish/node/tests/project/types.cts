// The same package in CommonJS: see types.mts.
import otelctx = require('otelctx')
import register = require('otelctx/register')

const context: otelctx.Context = new otelctx.Context(new Uint8Array(16), new Uint8Array(8), 1, ['/cart'])
const result: string = context.run(() => otelctx.unsupportedReason ?? 'x')
const registered: object = register
const named = otelctx.makeNamedContext(['http.route'])
named.append(context, { 'http.route': '/cart' })
// @ts-expect-error: it is no key.
named.append(context, { 'user.tier': 'gold' })

export = { registered, result }
