// Small parts of pages: icons, buttons, empty states, problems, dialogs, notices, and a ticking clock.

import { h, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { Problem } from '../lib/api.js'

const PATHS = {
  overview: 'M3 12h4l3-8 4 16 3-8h4',
  concurrency: 'M7 4v16M17 4v16M7 8h7a3 3 0 0 1 3 3M17 16h-7a3 3 0 0 1-3-3',
  blobs: 'M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9',
  tables: 'M4 5h16v14H4zM4 10h16M4 14.5h16M10 5v14',
  queues: 'M4 6h16M4 12h16M4 18h10',
  lab: 'M9 3h6M10 3v6l-5 10a1.5 1.5 0 0 0 1.4 2h11.2a1.5 1.5 0 0 0 1.4-2L14 9V3M7.5 15h9',
  trace: 'M4 5h10M4 10h16M4 15h7M4 20h13',
  server: 'M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01',
  files: 'M3 6h6l2 2h10v11H3z',
  folder: 'M3 6h6l2 2h10v11H3z',
  file: 'M6 3h8l4 4v14H6zM14 3v4h4',
  up: 'M12 19V5M6 11l6-6 6 6',
  down: 'M12 5v14M6 13l6 6 6-6',
  trash: 'M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13',
  lock: 'M6 11h12v9H6zM9 11V8a3 3 0 0 1 6 0v3',
  close: 'M6 6l12 12M18 6L6 18',
  copy: 'M9 9h11v11H9zM5 15V4h11',
  pause: 'M8 5v14M16 5v14',
  play: 'M7 5l12 7-12 7z',
  key: 'M14 10a4 4 0 1 0-4 4l1 1h2v2h2v2h4v-4l-5-5z',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2',
  out: 'M10 4H4v16h6M14 8l4 4-4 4M18 12H9',
  plus: 'M12 5v14M5 12h14',
}

export const icon = (name) => h('svg', { class: 'icon', viewBox: '0 0 24 24', 'aria-hidden': 'true' }, h('path', { d: PATHS[name] ?? PATHS.file }))

export function button(label, onclick, { kind = '', symbol, ...more } = {}) {
  return h('button', { type: 'button', class: `button ${kind}`, onclick, ...more }, symbol && icon(symbol), h('span', {}, label))
}

export function iconButton(symbol, label, onclick, more = {}) {
  return h('button', { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick, ...more }, icon(symbol))
}

export const empty = (symbol, title, text, action) =>
  h('div', { class: 'empty' }, h('span', { class: 'empty-icon' }, icon(symbol)), h('h3', {}, title), h('p', {}, text), action)

export const badge = (text, kind = '', more = {}) => h('span', { class: `badge ${kind}`, ...more }, text)

/** Shows a problem with its code and request id. */
export function problem(error) {
  if (error?.name === 'AbortError') return null
  const isOurs = error instanceof Problem
  return h('div', { class: 'problem', role: 'alert' },
    h('b', {}, isOurs ? `${error.status || ''} ${error.code}` : error?.name ?? 'Error'),
    h('span', {}, error?.message ?? String(error)),
    isOurs && error.requestId && h('code', {}, error.requestId))
}

const notices = signal([])
let counter = 0
export function notice(text, kind = 'info') {
  const id = ++counter
  notices.update((list) => [...list.slice(-3), { id, text, kind }])
  setTimeout(() => notices.update((list) => list.filter((it) => it.id !== id)), kind === 'bad' ? 9000 : 4500)
}
export const fail = (error) => error?.name !== 'AbortError' && notice(error instanceof Problem ? `${error.code}: ${error.message}` : String(error), 'bad')
export const noticeArea = () => h('div', { class: 'notices', role: 'status', 'aria-live': 'polite' }, () => notices().map((it) => h('div', { class: `notice ${it.kind}` }, it.text)))

/** Opens a dialog. `content(close)` returns its body; the promise has the value given to `close`. */
export function dialog(title, content, kind = '') {
  return new Promise((resolve) => {
    const opener = document.activeElement
    const close = (value) => {
      node.close()
      node.remove()
      if (opener?.isConnected) opener.focus()
      resolve(value)
    }
    const id = `dialog-${++counter}`
    const node = h('dialog', { class: kind, 'aria-labelledby': id, oncancel: (event) => { event.preventDefault(); close(undefined) } },
      h('header', {}, h('h2', { id }, title), iconButton('close', t('close'), () => close(undefined))),
      content(close))
    document.body.append(node)
    node.showModal()
    node.querySelector('[autofocus]')?.focus()
  })
}

/** Asks before something is destroyed. With `name`, the reader has to type it. */
export function confirm(title, text, action, name) {
  const typed = signal('')
  return dialog(title, (close) => h('form', { method: 'dialog', onsubmit: (event) => { event.preventDefault(); if (!name || typed() === name) close(true) } },
    h('p', {}, text),
    name && h('label', { class: 'field' }, h('span', {}, t('confirm.type', { name })), h('input', { type: 'text', autofocus: true, autocomplete: 'off', spellcheck: 'false', oninput: (event) => typed.set(event.target.value) })),
    h('footer', {}, button(t('cancel'), () => close(false)),
      h('button', { type: 'submit', class: 'button danger', disabled: () => Boolean(name) && typed() !== name }, action))), 'narrow')
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text)
    notice(t('copied'))
  } catch {
    notice(t('copy.failed'), 'bad')
  }
}

export const copyable = (text) => h('div', { class: 'copyable' }, h('code', {}, text), iconButton('copy', t('copy'), () => copy(text)))

/** The server's time in milliseconds, which countdowns follow. */
export const now = signal(Date.now())
let lead = 0
export const setServerTime = (text) => (lead = Date.parse(text) - Date.now())
setInterval(() => document.hidden || now.set(Date.now() + lead), 250)

export const field = (label, input, hint) => h('label', { class: 'field' }, h('span', {}, label), input, hint && h('small', {}, hint))
