// Server: the sessions of the console and the audit log. For operators.

import { each, h, onEnd, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { call } from '../lib/api.js'
import { listen } from '../lib/stream.js'
import { agent, moment, name } from '../lib/format.js'
import { badge, button, confirm, empty, fail } from '../ui/parts.js'

export function serverScreen() {
  const sessions = signal([])
  const current = signal('')
  const entries = signal([])
  const next = signal(null)
  const loadSessions = async () => {
    const reply = await call('GET', 'server/sessions')
    sessions.set(reply.items)
    current.set(reply.current)
  }
  const loadAudit = async (more) => {
    const reply = await call('GET', `audit${more ? `?after=${next.peek()}` : ''}`)
    entries.set(more ? [...entries.peek(), ...reply.items] : reply.items)
    next.set(reply.next)
  }
  Promise.all([loadSessions(), loadAudit(false)]).catch(fail)
  onEnd(listen('audit', (entry) => entries.update((list) => [entry, ...list].slice(0, 1000))))
  const end = async (it) => {
    if (!(await confirm(t('sessions.end'), t('sessions.end.text', { name: it.principal, peer: it.peer }), t('sessions.end')))) return
    await call('DELETE', `server/sessions/${it.id}`)
    await loadSessions()
  }
  const key = (it) => `${it.at}${it.action}${it.object}${it.requestId}`
  return h('div', { class: 'screen' }, h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.server')), h('p', { class: 'lead' }, t('server.lead')))),
    h('section', { class: 'card flush' }, h('h2', { class: 'pad' }, t('sessions')), h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('sessions') }, h('table', { class: 'rows' }, h('thead', {}, h('tr', {}, ['principal', 'address', 'client', 'created', 'seen'].map((it) => h('th', { scope: 'col' }, t(`col.${it}`))), h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('actions'))))),
      h('tbody', {}, each(sessions, (it) => it.id, (item) => h('tr', {}, h('th', { scope: 'row' }, name(item().principal), ' ', () => item().id === current() && badge(t('sessions.this'), 'good')), h('td', {}, item().peer), h('td', {}, name(agent(item().agent))), h('td', {}, moment(item().created)), h('td', {}, () => moment(item().seen)), h('td', { class: 'row-actions' }, () => item().id !== current() && button(t('sessions.end'), () => end(item()).catch(fail), { kind: 'small' })))))))),
    h('section', { class: 'card flush' }, h('h2', { class: 'pad' }, t('audit')), () => entries().length === 0 && empty('server', t('audit.empty'), t('audit.empty.text')),
      h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('audit') }, h('table', { class: 'rows' }, h('thead', {}, h('tr', {}, ['time', 'principal', 'action', 'object', 'outcome', 'address'].map((it) => h('th', { scope: 'col' }, t(`col.${it}`))))),
        h('tbody', {}, each(entries, key, (item) => { const it = item(); return h('tr', {}, h('td', {}, moment(it.at)), h('td', {}, name(it.principal)), h('td', {}, name(it.action)), h('td', { class: 'path' }, h('code', {}, name(it.object ?? it.account ?? ''))), h('td', {}, badge(name(it.outcome), /^(4|5|refused)/.test(it.outcome) ? 'warn' : 'outline')), h('td', {}, it.peer)) })))),
      () => next() && h('p', { class: 'more' }, button(t('more'), () => loadAudit(true).catch(fail)))))
}
