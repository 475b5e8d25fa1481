// Texts of the page in the reader's language. `t(key, values)` returns a text; values replace `{name}`.
// Plurals have a key for each form: `key.one`, `key.other`. Error codes and names of the protocol stay in
// English.

import { signal } from './view.js'

export const LANGUAGES = { en: 'English', de: 'Deutsch', cs: 'Čeština', ko: '한국어', pl: 'Polski' }
export const language = signal('en')

let texts = {}
let fallback = {}
let plurals = new Intl.PluralRules('en')

async function load(name) {
  const reply = await fetch(new URL(`../locales/${name}.json`, import.meta.url))
  return reply.json()
}

export async function choose(wanted) {
  const stored = wanted ?? localStorage.getItem('lazuli.language')
  const asked = [stored, ...navigator.languages].filter(Boolean).map((tag) => tag.slice(0, 2))
  const name = asked.find((tag) => tag in LANGUAGES) ?? 'en'
  if (!Object.keys(fallback).length) fallback = await load('en')
  texts = name === 'en' ? fallback : await load(name)
  if (localStorage.getItem('lazuli.pseudo')) texts = Object.fromEntries(Object.entries(fallback).map(([key, text]) => [key, pseudo(text)]))
  plurals = new Intl.PluralRules(name)
  if (wanted) localStorage.setItem('lazuli.language', name)
  document.documentElement.lang = name
  language.set(name)
}

// A text that is 40% longer, for tests of the layout.
const pseudo = (text) => text + ' ' + 'ẋ'.repeat(Math.ceil(text.length * 0.4))

export function t(key, values = {}) {
  language()
  const form = 'count' in values ? `${key}.${plurals.select(values.count)}` : key
  const text = texts[form] ?? texts[`${key}.other`] ?? texts[key] ?? fallback[form] ?? fallback[`${key}.other`] ?? fallback[key] ?? key
  return text.replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all)
}

/** Like `t`, but returns the pieces, so that a value may be a node. */
export function parts(key, values) {
  language()
  const text = texts[key] ?? fallback[key] ?? key
  return text.split(/(\{\w+\})/).filter(Boolean).map((piece) => {
    const name = /^\{(\w+)\}$/.exec(piece)?.[1]
    return name && name in values ? values[name] : piece
  })
}
