// Queues: their messages, visible and invisible, without changing dequeue counts; and the return of a message
// that a consumer holds.

import { computed, each, effect, h, onEnd, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { call, encode, storage } from '../lib/api.js'
import { link, route } from '../lib/route.js'
import { all, child, parse } from '../lib/xml.js'
import { agent, moment, name, span } from '../lib/format.js'
import { badge, button, confirm, dialog, empty, fail, field, icon, iconButton, notice, now, problem, setServerTime } from '../ui/parts.js'

const text = (element, key) => child(element, key).text
const STATES = ['visible', 'invisible', 'scheduled']

export function queuesScreen({ account }) {
  return h('div', { class: 'screen' }, () => {
    const [, queue] = route().segments
    return queue ? messages(account(), queue) : queues(account)
  })
}

function queues(account) {
  const items = signal(null)
  const failure = signal(null)
  const prefix = signal('')
  const load = async () => {
    try {
      const query = new URLSearchParams({ comp: 'list', prefix: prefix.peek(), maxresults: 500 })
      const root = child(parse(await (await storage('GET', 'queue', account.peek(), `/?${query}`)).text()), 'EnumerationResults')
      items.set(all(child(root, 'Queues'), 'Queue').map((it) => text(it, 'Name')))
      failure.set(null)
    } catch (error) { failure.set(error) }
  }
  effect(() => { account(); prefix(); load() })
  const create = () => dialog(t('queue.create'), (close) => {
    let input
    const wrong = signal(null)
    return h('form', { onsubmit: async (event) => {
      event.preventDefault()
      try { await storage('PUT', 'queue', account.peek(), `/${encode(input.value)}`); close(); load() } catch (error) { wrong.set(error) }
    } }, () => wrong() && problem(wrong()), field(t('name'), h('input', { type: 'text', required: true, autofocus: true, minlength: 3, maxlength: 63, spellcheck: 'false', ref: (node) => (input = node) }), t('container.name.hint')),
      h('footer', {}, button(t('cancel'), () => close()), h('button', { type: 'submit', class: 'button primary' }, t('create'))))
  }, 'narrow')
  const remove = async (queue) => {
    if (!(await confirm(t('queue.delete'), t('queue.delete.text', { name: queue }), t('delete'), queue))) return
    await storage('DELETE', 'queue', account.peek(), `/${encode(queue)}`)
    load()
  }
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.queues')), h('p', { class: 'lead' }, t('queues.lead'))), h('div', { class: 'actions' }, h('input', { type: 'search', placeholder: t('filter.prefix'), 'aria-label': t('filter.prefix'), oninput: (event) => prefix.set(event.target.value) }), button(t('queue.create'), create, { kind: 'primary', symbol: 'plus' }))),
    h('section', { class: 'card flush' }, () => failure() && problem(failure()),
      () => items()?.length === 0 && empty('queues', t('queues.empty'), t('queues.empty.text'), button(t('queue.create'), create, { kind: 'primary', symbol: 'plus' })),
      () => items()?.length > 0 && h('table', { class: 'rows' }, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, t('name')), h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('actions'))))),
        h('tbody', {}, each(items, (it) => it, (item) => h('tr', {}, h('th', { scope: 'row' }, h('a', { class: 'entry', href: link(['queues', item()]) }, icon('queues'), h('span', {}, name(item())))), h('td', { class: 'row-actions' }, iconButton('trash', `${t('delete')} ${item()}`, () => remove(item()).catch(fail))))))))]
}

function messages(account, queue) {
  const state = signal('visible')
  const items = signal(null)
  const complete = signal(true)
  const failure = signal(null)
  const path = `/${encode(queue)}/messages`
  const load = async () => {
    try {
      const reply = await call('GET', `queues/${account}/${encodeURIComponent(queue)}/messages?state=${state.peek()}`)
      setServerTime(reply.asOf)
      items.set(reply.items)
      complete.set(reply.complete)
      failure.set(null)
    } catch (error) { failure.set(error) }
  }
  effect(() => { state(); load() })
  const timer = setInterval(() => document.hidden || load(), 2000)
  onEnd(() => clearInterval(timer))
  const put = () => dialog(t('message.put'), (close) => {
    let [area, delay] = [null, null]
    const wrong = signal(null)
    return h('form', { onsubmit: async (event) => {
      event.preventDefault()
      const escaped = area.value.replace(/[&<>]/g, (it) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[it])
      try {
        await storage('POST', 'queue', account, `${path}?visibilitytimeout=${Number(delay.value)}`, { body: `<QueueMessage><MessageText>${escaped}</MessageText></QueueMessage>` })
        close()
        load()
      } catch (error) { wrong.set(error) }
    } }, () => wrong() && problem(wrong()), field(t('message.text'), h('textarea', { autofocus: true, rows: 5, ref: (node) => (area = node) })), field(t('message.delay'), h('input', { type: 'number', min: 0, max: 604800, value: 0, ref: (node) => (delay = node) })),
      h('footer', {}, button(t('cancel'), () => close()), h('button', { type: 'submit', class: 'button primary' }, t('message.put'))))
  }, 'narrow')
  const giveBack = async (it) => {
    if (!(await confirm(t('message.return'), t('message.return.text'), t('message.return')))) return
    await storage('PUT', 'queue', account, `${path}/${it.id}?popreceipt=${encodeURIComponent(it.receipt)}&visibilitytimeout=0`)
    notice(t('message.returned'))
    load()
  }
  const remove = async (it) => {
    if (!(await confirm(t('message.delete'), name(it.text.slice(0, 80)), t('delete')))) return
    await storage('DELETE', 'queue', account, `${path}/${it.id}?popreceipt=${encodeURIComponent(it.receipt)}`)
    load()
  }
  const shown = computed(() => items() ?? [])
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('nav', { class: 'crumbs', 'aria-label': t('path') }, h('a', { href: link(['queues']) }, t('nav.queues')), h('span', {}, name(queue))), h('h1', { class: 'sr' }, name(queue))), h('div', { class: 'actions' }, button(t('message.put'), put, { kind: 'primary', symbol: 'plus' }))),
    h('section', { class: 'card flush' }, h('div', { class: 'filters' }, h('div', { class: 'segments', role: 'group', 'aria-label': t('message.state') }, STATES.map((it) => h('button', { type: 'button', 'aria-pressed': () => String(state() === it), onclick: () => state.set(it) }, t(`message.${it}`)))), h('span', { class: 'hint' }, t('message.counts'))),
      () => failure() && problem(failure()),
      () => items()?.length === 0 && empty('queues', t(`message.${state()}.empty`), t(`message.${state()}.empty.text`)),
      () => !complete() && h('p', { class: 'hint pad' }, t('message.part', { count: shown().length })),
      h('ul', { class: 'messages' }, each(shown, (it) => it.id, (item) => h('li', {}, h('pre', { tabindex: '0' }, () => name(item().text.slice(0, 500))),
        h('div', { class: 'lease-foot' }, h('span', {}, () => `${t('message.count')} ${item().dequeueCount}`, ' ', () => item().dequeueCount > 1 && badge(t('message.again'), 'warn')), h('span', {}, () => t('message.inserted', { time: moment(item().inserted) })),
          () => state() !== 'visible' && h('b', { class: 'countdown' }, () => span((Date.parse(item().visibleAt) - now()) / 1000)), () => item().holder && state() === 'invisible' && h('span', {}, t('message.holder', { holder: name(agent(item().holder.client.agent) || item().holder.client.peer) })),
          h('span', { class: 'row-actions' }, () => state() !== 'visible' && button(t('message.return'), () => giveBack(item()).catch(fail), { kind: 'small' }), iconButton('trash', t('message.delete'), () => remove(item()).catch(fail))))))))]
}
