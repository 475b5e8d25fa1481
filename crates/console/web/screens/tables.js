// Tables: a grid of entities with their types, and an editor that never loses an update. If another client
// has changed the entity, the editor shows what was opened, what the reader wants, and what is stored now.

import { computed, each, effect, h, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { storage } from '../lib/api.js'
import { link, route } from '../lib/route.js'
import { TYPES, address, changed, compare, read, write } from '../lib/edm.js'
import { moment, name } from '../lib/format.js'
import { badge, button, confirm, dialog, empty, fail, field, icon, iconButton, notice, problem } from '../ui/parts.js'

const FULL = { accept: 'application/json;odata=fullmetadata', dataserviceversion: '3.0' }
const JSON_BODY = { 'content-type': 'application/json', accept: 'application/json;odata=nometadata', dataserviceversion: '3.0', prefer: 'return-no-content' }

export function tablesScreen({ account }) {
  return h('div', { class: 'screen' }, () => {
    const [, table] = route().segments
    return table ? entities(account(), table) : tables(account)
  })
}

function tables(account) {
  const items = signal(null)
  const failure = signal(null)
  const load = async () => {
    try {
      const reply = await storage('GET', 'table', account.peek(), '/Tables', { headers: { accept: 'application/json;odata=nometadata' } })
      items.set((await reply.json()).value.map((it) => it.TableName))
      failure.set(null)
    } catch (error) { failure.set(error) }
  }
  effect(() => { account(); load() })
  const create = () => dialog(t('table.create'), (close) => {
    let input
    const wrong = signal(null)
    return h('form', { onsubmit: async (event) => {
      event.preventDefault()
      try {
        await storage('POST', 'table', account.peek(), '/Tables', { headers: JSON_BODY, body: JSON.stringify({ TableName: input.value }) })
        close()
        load()
      } catch (error) { wrong.set(error) }
    } }, () => wrong() && problem(wrong()), field(t('name'), h('input', { type: 'text', required: true, autofocus: true, minlength: 3, maxlength: 63, pattern: '[A-Za-z][A-Za-z0-9]*', spellcheck: 'false', ref: (node) => (input = node) }), t('table.name.hint')),
      h('footer', {}, button(t('cancel'), () => close()), h('button', { type: 'submit', class: 'button primary' }, t('create'))))
  }, 'narrow')
  const remove = async (table) => {
    if (!(await confirm(t('table.delete'), t('table.delete.text', { name: table }), t('delete'), table))) return
    await storage('DELETE', 'table', account.peek(), `/Tables(%27${encodeURIComponent(table)}%27)`, { headers: { accept: 'application/json' } })
    load()
  }
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.tables')), h('p', { class: 'lead' }, t('tables.lead'))), h('div', { class: 'actions' }, button(t('table.create'), create, { kind: 'primary', symbol: 'plus' }))),
    h('section', { class: 'card flush' }, () => failure() && problem(failure()),
      () => items()?.length === 0 && empty('tables', t('tables.empty'), t('tables.empty.text'), button(t('table.create'), create, { kind: 'primary', symbol: 'plus' })),
      () => items()?.length > 0 && h('table', { class: 'rows' }, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, t('name')), h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('actions'))))),
        h('tbody', {}, each(items, (it) => it, (item) => h('tr', {}, h('th', { scope: 'row' }, h('a', { class: 'entry', href: link(['tables', item()]) }, icon('tables'), h('span', {}, name(item())))), h('td', { class: 'row-actions' }, iconButton('trash', `${t('delete')} ${item()}`, () => remove(item()).catch(fail))))))))]
}

function entities(account, table) {
  const items = signal(null)
  const failure = signal(null)
  const filter = signal(route.peek().query.get('filter') ?? '')
  const next = signal(null)
  const load = async (more) => {
    try {
      const query = new URLSearchParams({ $top: '100', ...(filter.peek() ? { $filter: filter.peek() } : {}), ...(more ? next.peek() : {}) })
      const reply = await storage('GET', 'table', account, `/${encodeURIComponent(table)}()?${query.toString().replace(/\+/g, '%20')}`, { headers: FULL })
      const found = (await reply.json()).value.map(read)
      items.set([...(more ? items.peek() : []), ...found])
      const partition = reply.headers.get('x-ms-continuation-nextpartitionkey')
      next.set(partition ? { NextPartitionKey: partition, ...(reply.headers.get('x-ms-continuation-nextrowkey') ? { NextRowKey: reply.headers.get('x-ms-continuation-nextrowkey') } : {}) } : null)
      failure.set(null)
    } catch (error) { failure.set(error) }
  }
  load(false)
  const columns = computed(() => [...new Set((items() ?? []).flatMap((it) => it.properties.map((property) => property.name)))].slice(0, 12))
  const open = (entity) => editor(account, table, entity).then((isChanged) => isChanged && load(false))
  const remove = async (entity) => {
    if (!(await confirm(t('entity.delete'), name(`${entity.partition} / ${entity.row}`), t('delete')))) return
    await storage('DELETE', 'table', account, address(table, entity.partition, entity.row), { headers: { 'if-match': entity.etag } })
    load(false)
  }
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('nav', { class: 'crumbs', 'aria-label': t('path') }, h('a', { href: link(['tables']) }, t('nav.tables')), h('span', {}, name(table))), h('h1', { class: 'sr' }, name(table))),
      h('div', { class: 'actions' }, h('form', { class: 'actions', onsubmit: (event) => { event.preventDefault(); load(false) } }, h('input', { type: 'search', class: 'query', placeholder: "PartitionKey eq 'a'", 'aria-label': '$filter', value: filter.peek(), spellcheck: 'false', oninput: (event) => filter.set(event.target.value) }), h('button', { type: 'submit', class: 'button' }, t('query'))),
        button(t('entity.add'), () => open(null), { kind: 'primary', symbol: 'plus' }))),
    h('section', { class: 'card flush' }, () => failure() && problem(failure()),
      () => items()?.length === 0 && empty('tables', t('entities.empty'), t('entities.empty.text'), button(t('entity.add'), () => open(null), { kind: 'primary', symbol: 'plus' })),
      () => items()?.length > 0 && h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': name(table) }, h('table', { class: 'rows' },
        h('thead', {}, h('tr', {}, ['PartitionKey', 'RowKey', ...columns()].map((it) => h('th', { scope: 'col' }, name(it))), h('th', { scope: 'col' }, t('col.modified')), h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('actions'))))),
        h('tbody', {}, items().map((entity) => h('tr', {}, h('th', { scope: 'row' }, h('button', { type: 'button', class: 'plain', onclick: () => open(entity) }, name(entity.partition) || t('value.empty'))), h('td', {}, name(entity.row) || t('value.empty')),
          columns().map((column) => { const property = entity.properties.find((it) => it.name === column); return h('td', { class: 'cell' }, property ? [name(property.value.slice(0, 80)) || h('i', { class: 'hint' }, t('value.empty')), ' ', property.type !== 'String' && badge(property.type, 'outline')] : h('span', { class: 'hint' }, '–')) }),
          h('td', {}, moment(entity.timestamp)), h('td', { class: 'row-actions' }, iconButton('trash', `${t('entity.delete')} ${entity.partition} ${entity.row}`, () => remove(entity).catch(fail)))))))),
      () => next() && h('p', { class: 'more' }, button(t('more'), () => load(true))))]
}

/** Edits an entity, or adds one. Resolves to whether anything was written. */
function editor(account, table, entity) {
  return dialog(entity ? name(`${entity.partition} / ${entity.row}`) : t('entity.add'), (close) => {
    const rows = signal((entity?.properties ?? [{ name: '', type: 'String', value: '' }]).map((it, id) => ({ id, name: signal(it.name), type: signal(it.type), value: signal(it.value) })))
    const keys = { partition: signal(entity?.partition ?? ''), row: signal(entity?.row ?? '') }
    const mode = signal('PUT')
    const wrong = signal(null)
    const conflict = signal(null)
    let counter = 1000
    const mine = () => rows.peek().filter((it) => it.name.peek()).map((it) => ({ name: it.name.peek(), type: it.type.peek(), value: it.value.peek() }))
    const send = async (method, properties, headers) => {
      const [partition, row] = [keys.partition.peek(), keys.row.peek()]
      const path = method === 'POST' ? `/${encodeURIComponent(table)}` : address(table, partition, row)
      await storage(method, 'table', account, path, { headers: { ...JSON_BODY, ...headers }, body: JSON.stringify(write(partition, row, properties)) })
      notice(t('saved'))
      close(true)
    }
    const attempt = async (method, properties, headers) => {
      wrong.set(null)
      try {
        await send(method, properties, headers)
      } catch (error) {
        if (!entity || !(error.status === 412 || error.status === 404)) return wrong.set(error)
        const reply = await storage('GET', 'table', account, address(table, entity.partition, entity.row), { headers: FULL, any: true })
        conflict.set({ theirs: reply.ok ? read(await reply.json()) : null })
      }
    }
    const save = () => (entity ? attempt(mode.peek(), mode.peek() === 'MERGE' ? changed(entity.properties, mine()) : mine(), { 'if-match': entity.etag }) : attempt('POST', mine(), {}))
    const key = (label, value) => field(label, h('input', { type: 'text', value, disabled: Boolean(entity), spellcheck: 'false', oninput: (event) => value.set(event.target.value) }))
    const propertyRow = (item) => {
      const it = item()
      return h('li', {}, h('input', { type: 'text', 'aria-label': t('name'), placeholder: t('name'), value: it.name.peek(), spellcheck: 'false', oninput: (event) => it.name.set(event.target.value) }),
        h('select', { 'aria-label': t('col.type'), onchange: (event) => it.type.set(event.target.value) }, TYPES.map((type) => h('option', { value: type, selected: type === it.type.peek() }, type))),
        h('input', { type: 'text', 'aria-label': t('value'), placeholder: t('value'), value: it.value.peek(), spellcheck: 'false', oninput: (event) => it.value.set(event.target.value) }),
        iconButton('trash', `${t('delete')} ${it.name.peek()}`, () => rows.update((list) => list.filter((other) => other !== it))))
    }
    const form = () => h('form', { onsubmit: (event) => { event.preventDefault(); save() } }, () => wrong() && problem(wrong()),
      h('div', { class: 'inline' }, key('PartitionKey', keys.partition), key('RowKey', keys.row)),
      h('ul', { class: 'properties' }, each(rows, (it) => it.id, propertyRow)),
      button(t('property.add'), () => rows.update((list) => [...list, { id: counter++, name: signal(''), type: signal('String'), value: signal('') }]), { kind: 'small', symbol: 'plus' }),
      entity && h('fieldset', { class: 'modes-choice' }, h('legend', {}, t('entity.mode')), [['PUT', 'replace'], ['MERGE', 'merge']].map(([value, text]) => h('label', { class: 'check' }, h('input', { type: 'radio', name: 'mode', checked: () => mode() === value, onchange: () => mode.set(value) }), h('span', {}, t(`entity.${text}`))))),
      h('footer', {}, entity && h('span', { class: 'hint' }, t('edit.etag', { etag: entity.etag })), button(t('cancel'), () => close(false)), h('button', { type: 'submit', class: 'button primary' }, t('save'))))
    const clash = () => {
      const { theirs } = conflict()
      const lines = compare(entity.properties, mine(), theirs?.properties)
      const cell = (text, isChanged) => h('td', { class: isChanged ? 'differs' : '' }, text === null ? h('span', { class: 'hint' }, t('value.absent')) : name(text))
      return h('form', { onsubmit: (event) => event.preventDefault() }, () => wrong() && problem(wrong()),
        h('p', { role: 'alert' }, theirs ? t('clash.changed', { time: moment(theirs.timestamp) }) : t('clash.deleted')),
        h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('clash') }, h('table', { class: 'clash' }, h('thead', {}, h('tr', {}, ['name', 'clash.opened', 'clash.mine', 'clash.theirs'].map((it) => h('th', { scope: 'col' }, t(it))))),
          h('tbody', {}, lines.map((line) => h('tr', {}, h('th', { scope: 'row' }, name(line.name)), cell(line.before, false), cell(line.own, line.isMine), cell(line.other, line.isTheirs)))))),
        h('footer', {}, theirs ? [button(t('edit.theirs'), () => close(true)), button(t('edit.overwrite'), () => attempt('PUT', mine(), { 'if-match': '*' }), { kind: 'danger' }), button(t('clash.rebase'), () => attempt('MERGE', changed(entity.properties, mine()), { 'if-match': theirs.etag }), { kind: 'primary' })]
          : [button(t('clash.discard'), () => close(true)), button(t('clash.insert'), () => attempt('POST', mine(), {}), { kind: 'primary' })]))
    }
    return h('div', {}, () => (conflict() ? clash() : form()))
  }, 'wide')
}
