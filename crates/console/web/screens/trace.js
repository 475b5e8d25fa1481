// Trace: live requests. The server sends at most 200 rows in a second and says how many it left out.

import { computed, each, h, onEnd, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { listen } from '../lib/stream.js'
import { route } from '../lib/route.js'
import { agent, bytes, clock, micros, name } from '../lib/format.js'
import { badge, button, copy, empty } from '../ui/parts.js'

const MAX_ROWS = 500

export function traceScreen({ account }) {
  const rows = signal([])
  const paused = signal(false)
  const filter = signal('')
  const errors = signal(route.peek().query.get('errors') === '1')
  const console_ = signal(false)
  const slow = signal(0)
  const left = signal(0)
  const opened = signal(null)
  let waiting = []
  onEnd(listen('trace', (row) => {
    waiting.push(row)
    if (waiting.length === 1) setTimeout(flush, 200)
  }))
  onEnd(listen('metrics', ({ untraced }) => untraced && left.update((it) => it + untraced)))
  const flush = () => {
    const arrived = waiting.splice(0)
    if (!paused.peek()) rows.update((list) => [...arrived.reverse(), ...list].slice(0, MAX_ROWS))
  }
  const shown = computed(() => rows().filter((row) => {
    if (row.account && row.account !== account()) return false
    if (errors() && !(row.status >= 400) && !row.aborted) return false
    if (!console_() && row.client.caller.startsWith('console')) return false
    if (slow() && (row.totalUs ?? 0) < slow() * 1000) return false
    const text = `${row.resource} ${row.operation} ${row.code} ${row.client.agent} ${row.client.peer} ${row.status}`.toLowerCase()
    return text.includes(filter().toLowerCase())
  }))
  const check = (label, value) => h('label', { class: 'check' }, h('input', { type: 'checkbox', checked: value, onchange: (event) => value.set(event.target.checked) }), h('span', {}, label))
  const asCurl = (row) => {
    const skip = ['host', 'content-length', 'user-agent', 'accept', 'connection', 'accept-encoding']
    const headers = row.headers.filter(([key]) => !skip.includes(key)).map(([key, value]) => `-H ${quote(`${key}: ${value}`)}`)
    return ['curl', '-X', row.method, ...headers, quote(`http://HOST/${row.account ?? ''}${encodeURI(row.resource)}${row.query ? `?${row.query}` : ''}`)].join(' ')
  }
  const quote = (text) => `'${text.replace(/'/g, `'\\''`)}'`
  const save = () => {
    const link = document.createElement('a')
    link.href = URL.createObjectURL(new Blob([shown().map((row) => JSON.stringify(row)).join('\n')], { type: 'application/x-ndjson' }))
    link.download = 'lazuli-trace.ndjson'
    link.click()
    URL.revokeObjectURL(link.href)
  }
  const kind = (row) => (row.status >= 500 || row.aborted ? 'bad' : row.status >= 400 ? 'warn' : 'good')

  return h('div', { class: 'screen' },
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.trace')), h('p', { class: 'lead' }, () => (left() ? t('trace.sampled', { count: left() }) : t('trace.lead')))),
      h('div', { class: 'actions' }, h('input', { type: 'search', placeholder: t('filter'), 'aria-label': t('filter'), oninput: (event) => filter.set(event.target.value) }),
        () => button(paused() ? t('resume') : t('pause'), () => paused.update((it) => !it), { symbol: paused() ? 'play' : 'pause', 'aria-pressed': String(paused()) }),
        button(t('trace.save'), save, { symbol: 'down' }))),
    () => opened() && h('section', { class: 'card detail', 'aria-live': 'polite' }, h('div', { class: 'card-head' }, h('h2', {}, `${opened().method} ${name(opened().resource)}`), button(t('trace.curl'), () => copy(asCurl(opened())), { symbol: 'copy', kind: 'small' })),
      opened().message && h('p', { class: 'problem' }, h('b', {}, opened().code), h('span', {}, opened().message)),
      h('dl', { class: 'facts wide' }, [[t('col.client'), `${opened().client.peer}:${opened().client.port} · ${opened().client.caller}`], [t('trace.id'), opened().client.requestId], [t('trace.clientId'), opened().client.clientRequestId], [t('trace.query'), opened().query], [t('col.first'), micros(opened().firstByteUs)], ...opened().headers]
        .filter(([, value]) => value).map(([key, value]) => h('div', {}, h('dt', {}, key), h('dd', {}, h('code', {}, name(value))))))),
    h('section', { class: 'card flush' },
      h('div', { class: 'filters' }, check(t('trace.errors'), errors), check(t('trace.console'), console_),
        h('label', { class: 'check' }, h('span', {}, t('trace.slow')), h('select', { onchange: (event) => slow.set(Number(event.target.value)) }, [0, 10, 100, 1000].map((ms) => h('option', { value: ms }, ms ? `${ms} ms` : '–'))))),
      () => shown().length === 0 && empty('trace', t('trace.empty'), t('trace.empty.text')),
      () => shown().length > 0 && h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('nav.trace') }, h('table', { class: 'rows' },
        h('thead', {}, h('tr', {}, ['time', 'status', 'operation', 'resource', 'client', 'bytes', 'total'].map((key) => h('th', { scope: 'col', class: ['bytes', 'total'].includes(key) ? 'num' : '' }, t(`col.${key}`))))),
        h('tbody', {}, each(shown, (row) => row.id, (item) => {
          const row = item()
          return h('tr', { class: 'clickable' },
            h('td', {}, h('button', { type: 'button', class: 'plain', 'aria-expanded': () => String(opened() === row), onclick: () => opened.set(opened() === row ? null : row) }, clock(row.at))),
            h('td', {}, badge(row.aborted ? t('trace.aborted') : String(row.status ?? '–'), kind(row)), ' ', row.code && h('code', { class: 'code' }, row.code)),
            h('td', {}, row.operation ?? row.method), h('td', { class: 'path' }, h('code', {}, name(row.resource || '/'))), h('td', { class: 'client' }, name(agent(row.client.agent) || row.client.peer)),
            h('td', { class: 'num' }, bytes((row.bytesIn ?? 0) + (row.bytesOut ?? 0))), h('td', { class: 'num' }, micros(row.totalUs)))
        }))))))
}
