// Every text of the page exists in every language, with the same values.

import assert from 'node:assert/strict'
import { readFileSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'

const web = new URL('../../crates/console/web', import.meta.url).pathname
const locale = (name) => JSON.parse(readFileSync(join(web, 'locales', `${name}.json`), 'utf8'))
const english = locale('en')
const scripts = ['', 'lib', 'ui', 'screens'].flatMap((folder) => readdirSync(join(web, folder)).filter((file) => file.endsWith('.js')).map((file) => readFileSync(join(web, folder, file), 'utf8')))

test('languages have the same keys and values', () => {
  const values = (text) => (text.match(/\{\w+\}/g) ?? []).sort()
  for (const name of ['de', 'cs', 'ko', 'pl']) {
    const other = locale(name)
    assert.deepEqual(Object.keys(other).sort(), Object.keys(english).sort(), name)
    for (const [key, text] of Object.entries(english)) assert.deepEqual(values(other[key]), values(text), `${name} ${key}`)
  }
})

test('every key in use exists', () => {
  const used = scripts.flatMap((script) => [...script.matchAll(/\b(?:t|parts)\('([\w.]+)'/g)].map(([, key]) => key))
  assert.ok(used.length > 100)
  const missing = used.filter((key) => !(key in english) && !(`${key}.other` in english))
  assert.deepEqual([...new Set(missing)], [])
})
