// Concurrency: leases that run down, files that are open, hot objects, and every refusal by a concurrency
// rule, with the request that won.

import { computed, each, effect, h, onEnd, signal, untracked } from '../lib/view.js'
import { parts, t } from '../lib/i18n.js'
import { call, encode, storage } from '../lib/api.js'
import { listen, state as live } from '../lib/stream.js'
import { agent, ago, clock, moment, name, span } from '../lib/format.js'
import { badge, button, confirm, empty, fail, notice, now, setServerTime } from '../ui/parts.js'

const person = (client) => {
  if (!client) return t('client.unknown')
  const program = agent(client.agent)
  return [program || client.caller || t('client.one'), client.peer && `(${client.peer}${client.port ? `:${client.port}` : ''})`].filter(Boolean).join(' ')
}
const loser = (row) => h('b', { class: 'loser' }, name(person(row.client)))
const winner = (row) => (row.other ? h('b', { class: 'winner' }, name(person(row.other.client))) : h('span', {}, t('client.unknown')))
const tag = (text) => h('code', { class: 'etag' }, name(text ?? '–'))
const what = (row) => h('code', {}, name(row.resource || '/'))
const left = (until) => (until ? span((Date.parse(until) - now()) / 1000) : t('lease.forever'))

// Numbers of events begin again with each process.
const identity = (row) => `${row.id} ${row.at}`

/** Returns both lists as one, newest first, without repetitions. */
function merge(list, more) {
  const known = new Set(list.map(identity))
  const added = more.filter((row) => !known.has(identity(row)))
  return [...added, ...list].sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : b.id - a.id)).slice(0, 200)
}

/** Returns the nodes of the sentence that explains a conflict. */
export function sentence(row) {
  const why = row.why ?? {}
  const at = row.other && h('span', { title: moment(row.other.at) }, () => ago(row.other.at, now()))
  const values = { loser: loser(row), winner: winner(row), what: what(row), given: tag(why.given), current: tag(why.current), ago: at ?? '', operation: row.operation ?? row.method }
  if (why.opens?.length) {
    const open = why.opens[0]
    const modes = { r: t('mode.r'), w: t('mode.w'), d: t('mode.d') }
    const list = (letters) => [...letters].map((it) => modes[it]).join(', ') || t('mode.none')
    return parts(row.code === 'SMBDeletePending' ? 'why.deletePending' : row.code === 'FileLockConflict' ? 'why.locked' : 'why.sharing',
      { ...values, client: h('b', { class: 'winner' }, name(`${open.name || t('client.one')} (${open.peer})`)), shared: list(open.shared), access: list(open.access) })
  }
  if (why.receiptEnded) {
    return parts(row.other ? 'why.late' : 'why.lateUnknown', { ...values, ended: h('span', {}, () => ago(why.receiptEnded, now())), count: row.other?.dequeueCount ?? '?' })
  }
  if (why.lease) {
    if (row.code === 'LeaseAlreadyPresent') return parts(row.other ? 'why.leasePresent' : 'why.leasePresentUnknown', { ...values, left: h('span', {}, () => left(why.lease.until)) })
    if (why.lease.state === 'leased' || why.lease.state === 'breaking') {
      return parts(row.code === 'LeaseIdMissing' ? (row.other ? 'why.leaseMissing' : 'why.leaseMissingUnknown') : row.other ? 'why.leaseWrong' : 'why.leaseWrongUnknown', { ...values, left: h('span', {}, () => left(why.lease.until)) })
    }
    return parts('why.leaseLost', { ...values, ended: why.lease.ended ? h('span', {}, () => ago(why.lease.ended, now())) : '' })
  }
  if (why.condition === 'If-None-Match' || /AlreadyExists$/.test(row.code ?? '')) return parts(row.other ? 'why.exists' : 'why.existsUnknown', values)
  if (why.current) return parts(row.other ? 'why.changed' : 'why.changedUnknown', values)
  return parts('why.other', { ...values, code: row.code ?? '' })
}

function conflictRow(item, opened) {
  const row = item()
  const details = () => [['conflict.loser', [person(row.client), row.client.caller, row.client.requestId]], ['conflict.condition', [row.why?.condition, row.why?.given]], ['conflict.current', [row.why?.current, row.why?.lastModified && moment(row.why.lastModified)]],
    ['conflict.winner', row.other ? [person(row.other.client), row.other.operation, moment(row.other.at), row.other.client.requestId] : [t('client.unknown')]]]
  return h('li', { class: 'conflict' },
    h('div', { class: 'conflict-head' }, h('time', { datetime: row.at, title: moment(row.at) }, clock(row.at)), badge(String(row.status), row.status === 412 ? 'warn' : 'bad'), h('code', { class: 'code' }, row.code ?? ''), h('span', { class: 'operation' }, `${t(`service.${row.service}`)} · ${row.operation ?? row.method}`)),
    h('p', { class: 'sentence' }, sentence(row)),
    h('details', { open: opened === row.id }, h('summary', {}, t('conflict.details')), h('dl', { class: 'facts wide' }, details().map(([key, values]) => h('div', {}, h('dt', {}, t(key)), h('dd', {}, values.filter(Boolean).map((value) => h('code', {}, name(value)))))))))
}

function leaseRow(item, act) {
  const lease = item
  const length = computed(() => (lease().until ? Math.max(1, Date.parse(lease().until) - Date.parse(lease().holder.at)) : 0))
  const rest = computed(() => (lease().until ? Math.max(0, Date.parse(lease().until) - now()) : 0))
  const isOver = computed(() => lease().until && rest() === 0)
  return h('li', { class: () => `lease ${isOver() ? 'over' : ''}` },
    h('div', { class: 'lease-head' }, h('b', {}, () => name(lease().resource)), badge(() => t(`lease.${isOver() ? (lease().state === 'breaking' ? 'broken' : lease().state === 'leased' ? 'expired' : lease().state) : lease().state}`), 'outline'), h('span', { class: 'countdown', role: 'timer' }, () => (lease().until ? span(rest() / 1000) : '∞'))),
    h('div', { class: 'bar', 'aria-hidden': 'true' }, h('i', { ref: (node) => effect(() => { node.style.transform = `scaleX(${lease().until ? Math.min(1, rest() / length()) : 1})` }) })),
    h('div', { class: 'lease-foot' }, h('span', {}, () => t('lease.holder', { holder: name(person(lease().holder.client)), id: lease().id })), h('span', {}, () => t('lease.counts', { renewals: lease().renewals, refused: lease().refused })),
      button(t('lease.break'), () => act(lease()), { kind: 'small' })))
}

export function concurrencyScreen({ account }) {
  const leases = signal(new Map())
  const opens = signal(new Map())
  const hot = signal(new Map())
  const conflicts = signal([])
  const paused = signal(false)
  const filter = signal('')
  const load = async () => {
    const [known, files, recent] = await Promise.all([call('GET', 'leases'), call('GET', 'opens'), call('GET', 'conflicts?limit=200')])
    setServerTime(known.asOf)
    const by = (items) => items.reduce((map, it) => map.set(it.account, [...(map.get(it.account) ?? []), it]), new Map())
    leases.set(by(known.items))
    opens.set(by(files.items))
    hot.set(new Map([[account.peek(), known.hot]]))
    if (!paused.peek()) conflicts.update((list) => merge(list, recent.items))
  }
  // Reading again once the stream is open leaves no time between the two in which a conflict could be missed.
  effect(() => { if (live().name === 'live') untracked(() => load().catch(fail)) })
  load().catch(fail)
  onEnd(listen('leases', (event) => {
    leases.update((map) => new Map(map).set(event.account, event.leases))
    hot.update((map) => new Map(map).set(event.account, event.hot))
  }))
  onEnd(listen('opens', (event) => opens.update((map) => new Map(map).set(event.account, event.opens))))
  let waiting = []
  onEnd(listen('conflicts', (event) => {
    waiting.push(event)
    if (waiting.length === 1) requestAnimationFrame(flush)
  }))
  const flush = () => {
    const arrived = waiting.splice(0)
    if (paused.peek()) return
    conflicts.update((list) => merge(list, arrived))
  }
  const breakLease = async (lease) => {
    const holder = person(lease.holder.client)
    const resource = lease.resource.replace(/^\//, '')
    if (!(await confirm(t('lease.break.title'), t('lease.break.text', { what: name(resource), holder: name(holder) }), t('lease.break'), resource.split('/').pop()))) return
    const isContainer = !resource.includes('/')
    const [container, ...rest] = resource.split('/')
    const path = isContainer ? `/${encode(container)}?restype=${lease.service === 'file' ? 'share' : 'container'}&comp=lease` : `/${encode(container)}/${encodeURIComponent(rest.join('/'))}?comp=lease`
    await storage('PUT', lease.service, lease.account, path, { headers: { 'x-ms-lease-action': 'break', 'x-ms-lease-break-period': '0' } })
    notice(t('lease.break.done'))
  }
  const fits = (text) => !filter() || text.toLowerCase().includes(filter().toLowerCase())
  const ofAccount = (map) => map().get(account()) ?? []
  const shownLeases = computed(() => ofAccount(leases).filter((it) => fits(it.resource)))
  const shownOpens = computed(() => ofAccount(opens).filter((it) => fits(`${it.share}/${it.path}`)))
  const shownHot = computed(() => ofAccount(hot).filter((it) => fits(it.resource)))
  const shownConflicts = computed(() => conflicts().filter((it) => (!it.account || it.account === account()) && fits(`${it.resource} ${it.code} ${it.client.agent} ${it.client.peer}`)))

  return h('div', { class: 'screen' },
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.concurrency')), h('p', { class: 'lead' }, t('concurrency.lead'))),
      h('div', { class: 'actions' }, h('input', { type: 'search', placeholder: t('filter'), 'aria-label': t('filter'), oninput: (event) => filter.set(event.target.value) }),
        () => button(paused() ? t('resume') : t('pause'), () => paused.update((it) => !it), { symbol: paused() ? 'play' : 'pause', 'aria-pressed': String(paused()) }))),
    h('div', { class: 'board' },
      h('section', { class: 'card stream' }, h('div', { class: 'card-head' }, h('h2', {}, t('concurrency.conflicts')), h('span', { class: 'hint' }, () => t('concurrency.shown', { count: shownConflicts().length }))),
        () => shownConflicts().length === 0 && empty('concurrency', t('conflicts.empty'), t('conflicts.empty.text')),
        h('ul', { class: 'conflicts', 'aria-label': t('concurrency.conflicts') }, each(shownConflicts, identity, (item) => conflictRow(item)))),
      h('div', { class: 'side' },
        h('section', { class: 'card' }, h('div', { class: 'card-head' }, h('h2', {}, t('concurrency.leases')), h('span', { class: 'hint' }, t('leases.scope'))),
          () => shownLeases().length === 0 && empty('lock', t('leases.empty'), t('leases.empty.text')),
          h('ul', { class: 'leases' }, each(shownLeases, (it) => it.service + it.resource, (item) => leaseRow(item, (lease) => breakLease(lease).catch(fail))))),
        h('section', { class: 'card' }, h('h2', {}, t('concurrency.opens')),
          () => shownOpens().length === 0 && empty('file', t('opens.empty'), t('opens.empty.text')),
          h('ul', { class: 'opens' }, each(shownOpens, (it) => `${it.share}/${it.path}`, (item) => h('li', {}, h('div', { class: 'lease-head' }, h('b', {}, () => name(`${item().share}/${item().path}`)), () => item().locks > 0 && badge(t('opens.locks', { count: item().locks }), 'warn'), () => item().deletePending && badge(t('opens.deletePending'), 'bad')),
            h('ul', { class: 'handles' }, each(() => item().opens, (it) => it.id, (open) => h('li', {}, h('span', {}, () => `${name(open().name || open().peer)} · ${open().peer}`), h('span', { class: 'modes' }, badge(() => `${t('opens.access')} ${open().access || '–'}`, 'outline'), badge(() => `${t('opens.shares')} ${open().shared || '–'}`, 'outline')), h('span', { class: 'hint' }, () => ago(open().since, now()))))))))),
        h('section', { class: 'card' }, h('h2', {}, t('concurrency.hot')),
          () => shownHot().length === 0 && h('p', { class: 'hint' }, t('hot.empty')),
          h('ol', { class: 'hot' }, each(shownHot, (it) => it.service + it.resource, (item) => h('li', {}, h('code', {}, () => name(item().resource)), h('b', {}, () => item().conflicts))))))))
}
