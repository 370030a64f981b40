// The types of the package, compared with what is there when it runs.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'

import { folder, npm, otelctx } from './common.mjs'

const typescript = npm('typescript-5')?.('typescript-5')

/** The declarations of a file that are exported, by their names. */
function declarations(file) {
  const { ScriptTarget, SyntaxKind, createSourceFile, canHaveModifiers, getModifiers } = typescript
  const source = createSourceFile(file, readFileSync(join(folder, 'lib', file), 'utf8'), ScriptTarget.Latest, true)
  const isExported = (node) =>
    canHaveModifiers(node) && getModifiers(node)?.some(({ kind }) => kind === SyntaxKind.ExportKeyword)
  const nodes = source.statements.flatMap((node) => {
    assert.ok(isExported(node), node.getText())
    return node.declarationList?.declarations ?? [node]
  })
  return new Map(nodes.map((node) => [node.name.text, node]))
}

/** The members of a class, an interface or an object type, by their names, without the constructor. */
function members(node) {
  const named = (node.members ?? node.type.members).filter((member) => member.name !== undefined)
  return new Map(named.map((member) => [member.name.text, member]))
}

const sorted = (names) => [...names].sort()

/** The names of an object's own properties that are the program's to use. */
const own = (object) => sorted(Reflect.ownKeys(object).filter((name) => name !== 'constructor'))

/** A function has as many parameters as its type, and is none where the type is none. */
function compareFunction(value, node, name) {
  if (node.parameters === undefined) assert.notEqual(typeof value, 'function', name)
  else assert.equal(value.length, node.parameters.length, name)
}

const skip = typescript === undefined && 'there is no TypeScript'

test('both kinds of modules have the same types', () => {
  const lines = readFileSync(join(folder, 'lib/index.d.mts'), 'utf8').split('\n')
  assert.deepEqual(lines.filter((line) => line !== '' && !line.startsWith('//')), ["export * from './index.js'"])
})

test('each name that is exported has a type, and each type of a value is that of a name', { skip }, async () => {
  const { isInterfaceDeclaration, isTypeAliasDeclaration, isClassDeclaration } = typescript
  const all = declarations('index.d.ts')
  const isType = (node) => isInterfaceDeclaration(node) || isTypeAliasDeclaration(node)
  const values = new Map([...all].filter(([, node]) => !isType(node)))
  const module = await import(pathToFileURL(join(folder, 'lib/index.mjs')))
  for (const exported of [otelctx, module]) {
    assert.deepEqual(sorted(Reflect.ownKeys(exported).filter((name) => typeof name === 'string')), sorted(values.keys()))
    for (const [name, node] of values) if (!isClassDeclaration(node)) compareFunction(exported[name], node, name)
  }
})

test('the classes have the members of their types', { skip }, () => {
  const { isConstructorDeclaration } = typescript
  const all = declarations('index.d.ts')
  const type = all.get('Context')
  const { Context } = otelctx
  assert.equal(Context.length, type.members.find(isConstructorDeclaration).parameters.length)
  // No member of the type is static.
  assert.deepEqual(own(Context), ['length', 'name', 'prototype'])
  const context = new Context(new Uint8Array(16).fill(1), new Uint8Array(8).fill(1))
  const named = otelctx.makeNamedContext(['http.route'])
  for (const [object, name] of [
    [context, 'Context'],
    [named, 'NamedContext'],
  ]) {
    const prototype = Object.getPrototypeOf(object)
    const typed = members(all.get(name))
    assert.deepEqual(own(object), [], name)
    assert.deepEqual(own(prototype), sorted(typed.keys()), name)
    for (const [member, node] of typed) compareFunction(object[member], node, `${name}.${member}`)
  }
  // What its class inherits is the addon's.
  const base = Object.getPrototypeOf(Context.prototype)
  assert.deepEqual(own(base), [])
})

test('what the process context needs has the attributes of its type', { skip }, () => {
  const typed = members(declarations('index.d.ts').get('ProcessContextAttributes'))
  const attributes = otelctx.makeNamedContext(['http.route']).processContextAttributes
  assert.deepEqual(own(attributes), sorted(typed.keys()))
  for (const [name, { type }] of typed) {
    const value = attributes[name]
    const text = type.getText()
    if (text === 'readonly string[]') assert.ok(value.every((key) => typeof key === 'string'))
    else if (text === 'number') assert.equal(typeof value, 'number', name)
    else assert.equal(`'${value}'`, text, name)
  }
})
