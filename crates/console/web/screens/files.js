// Files: shares, directories and files, with upload, download, and the handles that SMB clients have open.

import { each, effect, h, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { download, encode, storage } from '../lib/api.js'
import { link, route } from '../lib/route.js'
import { all, child, parse } from '../lib/xml.js'
import { bytes, moment, name } from '../lib/format.js'
import { badge, button, confirm, copyable, dialog, empty, fail, field, icon, iconButton, notice, problem } from '../ui/parts.js'

const RANGE = 4 << 20
const text = (element, key) => child(element, key).text

export function filesScreen({ account }) {
  return h('div', { class: 'screen' }, () => {
    const [, share] = route().segments
    return share ? directory(account(), share, route().query.get('path') ?? '') : shares(account)
  })
}

function creator(title, hint, create) {
  return dialog(title, (close) => {
    let input
    const wrong = signal(null)
    return h('form', { onsubmit: async (event) => {
      event.preventDefault()
      try { await create(input.value); close() } catch (error) { wrong.set(error) }
    } }, () => wrong() && problem(wrong()), field(t('name'), h('input', { type: 'text', required: true, autofocus: true, spellcheck: 'false', ref: (node) => (input = node) }), hint),
      h('footer', {}, button(t('cancel'), () => close()), h('button', { type: 'submit', class: 'button primary' }, t('create'))))
  }, 'narrow')
}

function shares(account) {
  const items = signal(null)
  const failure = signal(null)
  const load = async () => {
    try {
      const root = child(parse(await (await storage('GET', 'file', account.peek(), '/?comp=list&maxresults=500')).text()), 'EnumerationResults')
      items.set(all(child(root, 'Shares'), 'Share'))
      failure.set(null)
    } catch (error) { failure.set(error) }
  }
  effect(() => { account(); load() })
  const create = () => creator(t('share.create'), t('container.name.hint'), async (share) => { await storage('PUT', 'file', account.peek(), `/${encode(share)}?restype=share`); load() })
  const remove = async (share) => {
    if (!(await confirm(t('share.delete'), t('container.delete.text', { name: share }), t('delete'), share))) return
    await storage('DELETE', 'file', account.peek(), `/${encode(share)}?restype=share`)
    load()
  }
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.files')), h('p', { class: 'lead' }, t('files.lead'))), h('div', { class: 'actions' }, button(t('share.create'), create, { kind: 'primary', symbol: 'plus' }))),
    h('section', { class: 'card flush' }, () => failure() && problem(failure()),
      () => items()?.length === 0 && empty('folder', t('shares.empty'), t('shares.empty.text'), button(t('share.create'), create, { kind: 'primary', symbol: 'plus' })),
      () => items()?.length > 0 && h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('nav.files') }, h('table', { class: 'rows' }, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, t('name')), h('th', { scope: 'col', class: 'num' }, t('col.quota')), h('th', { scope: 'col' }, t('col.modified')), h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('actions'))))),
        h('tbody', {}, each(items, (it) => text(it, 'Name'), (item) => h('tr', {}, h('th', { scope: 'row' }, h('a', { class: 'entry', href: link(['files', text(item(), 'Name')]) }, icon('folder'), h('span', {}, name(text(item(), 'Name'))))), h('td', { class: 'num' }, () => bytes(Number(text(child(item(), 'Properties'), 'Quota')) * 2 ** 30)), h('td', {}, () => moment(text(child(item(), 'Properties'), 'Last-Modified'))),
          h('td', { class: 'row-actions' }, iconButton('trash', `${t('delete')} ${text(item(), 'Name')}`, () => remove(text(item(), 'Name')).catch(fail)))))))))]
}

function directory(account, share, path) {
  const items = signal(null)
  const handles = signal([])
  const failure = signal(null)
  const marker = signal('')
  const at = (file = '') => `/${encode([share, path, file].filter(Boolean).join('/'))}`
  const load = async (more) => {
    try {
      const query = new URLSearchParams({ restype: 'directory', comp: 'list', maxresults: '500', include: 'Timestamps', ...(more ? { marker: marker.peek() } : {}) })
      const root = child(parse(await (await storage('GET', 'file', account, `${at()}?${query}`)).text()), 'EnumerationResults')
      const entries = child(root, 'Entries')
      const found = [...all(entries, 'Directory').map((it) => ({ folder: true, name: text(it, 'Name') })), ...all(entries, 'File').map((it) => ({ name: text(it, 'Name'), size: Number(text(child(it, 'Properties'), 'Content-Length')), modified: text(child(it, 'Properties'), 'Last-Modified') || text(child(it, 'Properties'), 'LastWriteTime') }))]
      items.set([...(more ? items.peek() : []), ...found])
      marker.set(text(root, 'NextMarker'))
      const open = child(parse(await (await storage('GET', 'file', account, `${at()}?comp=listhandles`, { headers: { 'x-ms-recursive': 'true' } })).text()), 'EnumerationResults')
      handles.set(all(child(open, 'Entries'), 'Handle'))
      failure.set(null)
    } catch (error) { failure.set(error) }
  }
  load(false)
  const send = async (file) => {
    const target = at(file.name)
    const exists = await storage('HEAD', 'file', account, target, { any: true })
    if (exists.ok && !(await confirm(t('upload.exists'), t('upload.exists.text', { name: name(file.name) }), t('upload.overwrite')))) return
    await storage('PUT', 'file', account, target, { headers: { 'x-ms-type': 'file', 'x-ms-content-length': String(file.size), 'x-ms-content-type': file.type || 'application/octet-stream', 'x-ms-file-attributes': 'None', 'x-ms-file-creation-time': 'now', 'x-ms-file-last-write-time': 'now', 'x-ms-file-permission': 'inherit' } })
    for (let from = 0; from < file.size; from += RANGE) {
      const part = file.slice(from, from + RANGE)
      await storage('PUT', 'file', account, `${target}?comp=range`, { headers: { 'x-ms-write': 'update', 'x-ms-range': `bytes=${from}-${from + part.size - 1}` }, body: part })
    }
    notice(t('file.sent', { name: name(file.name) }))
  }
  let picker
  const sendAll = async (files) => { for (const file of files) await send(file); load(false) }
  const remove = async (it) => {
    if (!(await confirm(t('delete'), name(it.name), t('delete')))) return
    await storage('DELETE', 'file', account, it.folder ? `${at(it.name)}?restype=directory` : at(it.name))
    load(false)
  }
  const close = async (handle) => {
    const [file, client] = [text(handle, 'Path'), text(handle, 'ClientName') || text(handle, 'ClientIp')]
    if (!(await confirm(t('handle.close'), t('handle.close.text', { client: name(client), file: name(file) }), t('handle.close'), file.split('/').pop() || share))) return
    await storage('PUT', 'file', account, `/${encode([share, file].filter(Boolean).join('/'))}?comp=forceclosehandles`, { headers: { 'x-ms-handle-id': text(handle, 'HandleId') } })
    load(false)
  }
  const createDirectory = () => creator(t('directory.create'), '', async (it) => { await storage('PUT', 'file', account, `${at(it)}?restype=directory`, { headers: { 'x-ms-file-attributes': 'None', 'x-ms-file-creation-time': 'now', 'x-ms-file-last-write-time': 'now', 'x-ms-file-permission': 'inherit' } }); load(false) })
  const steps = path.split('/').filter(Boolean)
  const join = (file) => [path, file].filter(Boolean).join('/')
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', { class: 'sr' }, name(share)), h('nav', { class: 'crumbs', 'aria-label': t('path') }, h('a', { href: link(['files']) }, t('nav.files')), h('a', { href: link(['files', share]) }, name(share)), steps.map((step, i) => h('a', { href: link(['files', share], { path: steps.slice(0, i + 1).join('/') }) }, name(step))))),
      h('div', { class: 'actions' }, button(t('directory.create'), createDirectory, { symbol: 'folder' }), h('input', { type: 'file', multiple: true, class: 'sr', tabindex: '-1', 'aria-hidden': 'true', ref: (node) => (picker = node), onchange: () => { sendAll([...picker.files]).catch(fail); picker.value = '' } }), button(t('upload'), () => picker.click(), { kind: 'primary', symbol: 'up' }))),
    h('section', { class: 'card flush' }, () => failure() && problem(failure()),
      () => items()?.length === 0 && empty('folder', t('directory.empty'), t('directory.empty.text'), button(t('upload'), () => picker.click(), { kind: 'primary', symbol: 'up' })),
      () => items()?.length > 0 && h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': name(share) }, h('table', { class: 'rows' }, h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, t('name')), h('th', { scope: 'col', class: 'num' }, t('col.size')), h('th', { scope: 'col' }, t('col.modified')), h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('actions'))))),
        h('tbody', {}, each(items, (it) => it.name, (item) => { const it = item(); return h('tr', {}, h('th', { scope: 'row' }, it.folder ? h('a', { class: 'entry', href: link(['files', share], { path: join(it.name) }) }, icon('folder'), h('span', {}, name(it.name))) : h('span', { class: 'entry' }, icon('file'), h('span', {}, name(it.name)))), h('td', { class: 'num' }, it.folder ? '' : bytes(it.size)), h('td', {}, it.folder ? '' : moment(it.modified)),
          h('td', { class: 'row-actions' }, !it.folder && iconButton('down', `${t('download')} ${it.name}`, () => download('file', account, at(it.name), it.name).catch(fail)), iconButton('trash', `${t('delete')} ${it.name}`, () => remove(it).catch(fail)))) })))),
      () => marker() && h('p', { class: 'more' }, button(t('more'), () => load(true)))),
    h('section', { class: 'card' }, h('h2', {}, t('handles')), () => handles().length === 0 && h('p', { class: 'hint' }, t('handles.empty')),
      h('ul', { class: 'opens' }, each(handles, (it) => text(it, 'HandleId'), (item) => h('li', {}, h('div', { class: 'lease-head' }, h('b', {}, name(text(item(), 'Path') || '/')), all(child(item(), 'AccessRightList'), 'AccessRight').map((it) => badge(it.text, 'outline'))), h('div', { class: 'lease-foot' }, h('span', {}, `${name(text(item(), 'ClientName'))} ${text(item(), 'ClientIp')}`), h('span', {}, moment(text(item(), 'OpenTime'))), button(t('handle.close'), () => close(item()).catch(fail), { kind: 'small' })))))),
    h('section', { class: 'card' }, h('h2', {}, t('mount')), h('p', { class: 'hint' }, t('mount.how')), copyable(`smbclient //127.0.0.1/${share} -p 10445 -U ${account}`))]
}
