// Lab: scenarios of managed concurrency, step by step, on the real store. Clients A and B are two roles of
// this page. Each step shows its request and its reply. A scenario has its own container, table or queue,
// which is removed when the reader leaves.

import { each, h, onEnd, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { storage } from '../lib/api.js'
import { link, route } from '../lib/route.js'
import { name } from '../lib/format.js'
import { badge, button, fail, icon } from '../ui/parts.js'

const BLOB = { 'x-ms-blob-type': 'BlockBlob' }
const JSON_BODY = { 'content-type': 'application/json', accept: 'application/json;odata=nometadata', prefer: 'return-no-content', dataserviceversion: '3.0' }
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000))
const put = (client, text, headers = {}) => ({ client, method: 'PUT', path: (it) => `/${it.id}/counter`, body: text, headers: { ...BLOB, ...headers } })
const get = (client) => ({ client, method: 'GET', path: (it) => `/${it.id}/counter`, keep: `etag${client}` })
const lease = (client, action, headers = {}, more = {}) => ({ client, method: 'PUT', path: (it) => `/${it.id}/counter?comp=lease`, headers: { 'x-ms-lease-action': action, ...headers }, ...more })
const wait = (seconds) => ({ client: 'AB', wait: seconds })
const entity = (client, method, body, headers = {}) => ({ client, method, service: 'table', path: (it) => `/${it.id}(PartitionKey='p',RowKey='r')`, body: JSON.stringify(body), headers: { ...JSON_BODY, ...headers } })
const message = (client, method, path, more = {}) => ({ client, method, service: 'queue', path, ...more })

// A header whose value is a function gets it from what earlier steps have kept.
const SCENARIOS = [
  { key: 'lastWriter', needs: 'blob', steps: [put('A', '1'), get('A'), get('B'), put('A', '2 (A)'), put('B', '2 (B)'), { ...get('A'), holds: (reply, text) => text === '2 (B)' }] },
  { key: 'optimistic', needs: 'blob', steps: [put('A', '1'), get('A'), get('B'), put('B', '2', { 'if-match': (it) => it.etagB }), { ...put('A', '2', { 'if-match': (it) => it.etagA }), expect: 412 }, get('A'), put('A', '3', { 'if-match': (it) => it.etagA }), { ...get('B'), holds: (reply, text) => text === '3' }] },
  { key: 'createOnce', needs: 'blob', steps: [put('A', 'A', { 'if-none-match': '*' }), { ...put('B', 'B', { 'if-none-match': '*' }), expect: 409 }, { ...get('B'), holds: (reply, text) => text === 'A' }] },
  { key: 'lease', needs: 'blob', steps: [put('A', '1'), lease('A', 'acquire', { 'x-ms-lease-duration': '15' }, { keep: 'leaseA' }), { ...put('B', '2'), expect: 412 }, { ...lease('B', 'acquire', { 'x-ms-lease-duration': '15' }), expect: 409 }, put('A', '2', { 'x-ms-lease-id': (it) => it.leaseA }), wait(16), put('B', '3'), { ...put('A', '4', { 'x-ms-lease-id': (it) => it.leaseA }), expect: 412, holds: () => true }] },
  { key: 'broken', needs: 'blob', steps: [put('A', '1'), lease('A', 'acquire', { 'x-ms-lease-duration': '-1' }, { keep: 'leaseA' }), lease('B', 'break', { 'x-ms-lease-break-period': '5' }), put('A', '2', { 'x-ms-lease-id': (it) => it.leaseA }), { ...put('B', '3'), expect: 412 }, wait(6), { ...put('B', '3'), holds: () => true }] },
  { key: 'table', needs: 'table', steps: [entity('A', 'PUT', { n: 1 }), { client: 'A', method: 'GET', service: 'table', path: (it) => `/${it.id}(PartitionKey='p',RowKey='r')`, headers: { accept: 'application/json;odata=nometadata' }, keep: 'etagA' }, entity('B', 'MERGE', { n: 2 }, { 'if-match': '*' }), { ...entity('A', 'PUT', { n: 3 }, { 'if-match': (it) => it.etagA }), expect: 412 }, { ...entity('A', 'PUT', { n: 3 }), holds: () => true }] },
  { key: 'queue', needs: 'queue', steps: [message('A', 'POST', (it) => `/${it.id}/messages`, { body: '<QueueMessage><MessageText>work</MessageText></QueueMessage>' }), message('A', 'GET', (it) => `/${it.id}/messages?visibilitytimeout=3`, { keep: 'messageA' }), message('B', 'GET', (it) => `/${it.id}/messages?visibilitytimeout=60`, { holds: (reply, text) => !text.includes('<QueueMessage>') }), wait(4), message('B', 'GET', (it) => `/${it.id}/messages?visibilitytimeout=60`, { keep: 'messageB' }), message('A', 'DELETE', (it) => `/${it.id}/messages/${it.messageA.id}?popreceipt=${encodeURIComponent(it.messageA.receipt)}`, { expect: 404 }), message('B', 'DELETE', (it) => `/${it.id}/messages/${it.messageB.id}?popreceipt=${encodeURIComponent(it.messageB.receipt)}`, { holds: () => true })] },
]

const SETUP = {
  blob: { service: 'blob', create: ['PUT', (id) => `/${id}?restype=container`], remove: ['DELETE', (id) => `/${id}?restype=container`] },
  queue: { service: 'queue', create: ['PUT', (id) => `/${id}`], remove: ['DELETE', (id) => `/${id}`] },
  table: { service: 'table', create: ['POST', () => '/Tables', (id) => JSON.stringify({ TableName: id })], remove: ['DELETE', (id) => `/Tables('${id}')`] },
}

async function create(account, kind) {
  const id = `lab${crypto.randomUUID().replaceAll('-', '').slice(0, 12)}`
  const [method, path, body] = SETUP[kind].create
  await storage(method, SETUP[kind].service, account, path(id), { headers: kind === 'table' ? JSON_BODY : {}, body: body?.(id) })
  return { id, kind, remove: () => storage(SETUP[kind].remove[0], SETUP[kind].service, account, SETUP[kind].remove[1](id), { headers: { accept: 'application/json' }, any: true }).catch(() => {}) }
}

function remember(kept, key, reply, text) {
  if (key.startsWith('etag')) kept[key] = reply.headers.get('etag')
  else if (key.startsWith('lease')) kept[key] = reply.headers.get('x-ms-lease-id')
  else kept[key] = { id: /<MessageId>([^<]+)/.exec(text)?.[1], receipt: /<PopReceipt>([^<]+)/.exec(text)?.[1]?.replaceAll('&amp;', '&') }
}

export function labScreen({ account }) {
  const shelf = []
  const clean = () => shelf.splice(0).forEach((it) => it.remove())
  onEnd(clean)
  return h('div', { class: 'screen' }, () => {
    const key = route().segments[1]
    const scenario = SCENARIOS.find((it) => it.key === key)
    if (key === 'race') return race(account(), shelf)
    return scenario ? stage(account(), scenario, shelf) : menu()
  })
}

const menu = () => [
  h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.lab')), h('p', { class: 'lead' }, t('lab.lead')))),
  h('ul', { class: 'scenarios' }, [...SCENARIOS.map((it) => it.key), 'race'].map((key) => h('li', {}, h('a', { class: 'card scenario', href: link(['lab', key]) }, h('span', { class: 'empty-icon' }, icon(key === 'race' ? 'overview' : 'concurrency')), h('h2', {}, t(`lab.${key}`)), h('p', {}, t(`lab.${key}.claim`))))))]

const head = (key, actions) => h('div', { class: 'screen-head' }, h('div', {}, h('nav', { class: 'crumbs', 'aria-label': t('path') }, h('a', { href: link(['lab']) }, t('nav.lab'))), h('h1', {}, t(`lab.${key}`)), h('p', { class: 'lead' }, t(`lab.${key}.claim`))), h('div', { class: 'actions' }, actions))

function stage(account, scenario, shelf) {
  const done = signal([])
  const busy = signal(false)
  const verdict = signal(null)
  let place = null
  let kept = {}
  const step = async () => {
    const at = done.peek().length
    if (busy.peek() || at >= scenario.steps.length) return
    const it = scenario.steps[at]
    busy.set(true)
    try {
      if (!place) {
        place = await create(account, scenario.needs)
        shelf.push(place)
        kept.id = place.id
      }
      if (it.wait) {
        await pause(it.wait)
        done.update((list) => [...list, { step: it, at }])
      } else {
        const headers = Object.fromEntries(Object.entries(it.headers ?? {}).map(([key, value]) => [key, typeof value === 'function' ? value(kept) : value]))
        const reply = await storage(it.method, it.service ?? 'blob', account, it.path(kept), { headers, body: it.body, any: true })
        const text = await reply.text()
        if (it.keep) remember(kept, it.keep, reply, text)
        const isExpected = it.expect ? reply.status === it.expect : reply.ok
        if (it.holds || !isExpected) verdict.set(isExpected && (!it.holds || it.holds(reply, text)) && verdict.peek() !== false)
        done.update((list) => [...list, { step: it, at, headers, path: it.path(kept), status: reply.status, code: reply.headers.get('x-ms-error-code'), etag: reply.headers.get('etag'), text: it.method === 'GET' ? text.slice(0, 200) : '', isExpected }])
      }
    } catch (error) {
      fail(error)
    } finally {
      busy.set(false)
    }
  }
  const play = async () => {
    while (done.peek().length < scenario.steps.length) {
      const before = done.peek().length
      await step()
      if (done.peek().length === before) return
      await pause(0.7)
    }
  }
  const again = () => {
    shelf.splice(0).forEach((it) => it.remove())
    ;[place, kept] = [null, {}]
    done.set([])
    verdict.set(null)
  }
  const isOver = () => done().length === scenario.steps.length
  const lane = (client) => h('section', { class: `card lane ${client}` }, h('h2', {}, t('lab.client', { client })), h('ol', {}, each(() => done().filter((it) => it.step.client.includes(client)), (it) => it.at, (item) => {
    const it = item()
    if (it.step.wait) return h('li', { class: 'waited' }, t('lab.waited', { seconds: it.step.wait }))
    return h('li', { class: it.isExpected ? '' : 'odd' }, h('span', { class: 'number' }, it.at + 1), h('div', {}, h('code', { class: 'request' }, `${it.step.method} ${name(it.path)}`), Object.entries(it.headers).filter(([key]) => /^if-|lease/.test(key)).map(([key, value]) => h('code', { class: 'etag' }, `${key}: ${name(value)}`)),
      h('div', {}, badge(String(it.status), it.status < 300 ? 'good' : 'warn'), ' ', it.code && h('code', { class: 'code' }, it.code), ' ', it.etag && h('code', { class: 'etag' }, it.etag)), it.text && h('pre', { tabindex: '0' }, name(it.text))))
  })))
  return [
    head(scenario.key, [button(t('lab.next'), step, { kind: 'primary', symbol: 'play', disabled: () => busy() || isOver() }), button(t('lab.play'), play, { disabled: () => busy() || isOver() }), button(t('lab.again'), again, { disabled: busy })]),
    h('p', { class: 'hint', role: 'status' }, () => (busy() ? t('lab.busy') : t('lab.progress', { at: done().length, of: scenario.steps.length }))),
    () => isOver() && verdict() !== null && h('p', { class: verdict() ? 'verdict good' : 'verdict bad', role: 'status' }, t(verdict() ? 'lab.holds' : 'lab.fails')),
    h('div', { class: 'lanes' }, lane('A'), lane('B'))]
}

/** Six clients add to one counter, with each strategy. */
function race(account, shelf) {
  const rows = signal(['none', 'optimistic', 'pessimistic'].map((key) => ({ key })))
  const busy = signal(false)
  const CLIENTS = 6
  const EACH = 10
  const run = async () => {
    busy.set(true)
    try {
      for (const { key } of rows.peek()) {
        const place = await create(account, 'blob')
        shelf.push(place)
        const path = `/${place.id}/counter`
        await storage('PUT', 'blob', account, path, { headers: BLOB, body: '0' })
        const since = performance.now()
        let retries = 0
        const add = async () => {
          for (;;) {
            let id = null
            if (key === 'pessimistic') {
              const got = await storage('PUT', 'blob', account, `${path}?comp=lease`, { headers: { 'x-ms-lease-action': 'acquire', 'x-ms-lease-duration': '15' }, any: true })
              if (!got.ok) { retries++; await pause(0.01 + Math.random() * 0.05); continue }
              id = got.headers.get('x-ms-lease-id')
            }
            const reply = await storage('GET', 'blob', account, path)
            const [value, etag] = [Number(await reply.text()), reply.headers.get('etag')]
            const written = await storage('PUT', 'blob', account, path, { headers: { ...BLOB, ...(key === 'optimistic' ? { 'if-match': etag } : {}), ...(id ? { 'x-ms-lease-id': id } : {}) }, body: String(value + 1), any: true })
            if (id) await storage('PUT', 'blob', account, `${path}?comp=lease`, { headers: { 'x-ms-lease-action': 'release', 'x-ms-lease-id': id }, any: true })
            if (written.ok) return
            retries++
          }
        }
        const client = async () => { for (let n = 0; n < EACH; n++) await add() }
        await Promise.all(Array.from({ length: CLIENTS }, client))
        const total = Number(await (await storage('GET', 'blob', account, path)).text())
        const result = { key, total, lost: CLIENTS * EACH - total, retries, seconds: (performance.now() - since) / 1000 }
        rows.update((list) => list.map((it) => (it.key === key ? result : it)))
      }
    } catch (error) { fail(error) } finally { busy.set(false) }
  }
  const cell = (value) => h('td', { class: 'num' }, value ?? '–')
  return [head('race', [button(t('lab.start'), run, { kind: 'primary', symbol: 'play', disabled: busy })]),
    h('p', { class: 'hint', role: 'status' }, () => (busy() ? t('lab.busy') : t('lab.race.how', { clients: CLIENTS, each: EACH, total: CLIENTS * EACH }))),
    h('section', { class: 'card flush' }, h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('lab.race') }, h('table', { class: 'rows' }, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, t('lab.strategy')), ['total', 'lost', 'retries', 'seconds'].map((it) => h('th', { scope: 'col', class: 'num' }, t(`lab.${it}`))))),
      h('tbody', {}, () => rows().map((it) => h('tr', { class: it.lost > 0 ? 'odd' : '' }, h('th', { scope: 'row' }, t(`lab.strategy.${it.key}`)), cell(it.total), h('td', { class: 'num' }, it.lost === undefined ? '–' : badge(String(it.lost), it.lost ? 'bad' : 'good')), cell(it.retries), cell(it.seconds?.toFixed(2))))))))]
}
