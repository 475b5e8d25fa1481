// Blobs: containers, virtual folders, upload and download with progress, and the details of a blob.

import { computed, each, effect, h, onEnd, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { Problem, call, download, encode, storage, upload } from '../lib/api.js'
import { go, link, route } from '../lib/route.js'
import { all, child, parse } from '../lib/xml.js'
import { agent, ago, bytes, moment, name, span } from '../lib/format.js'
import { badge, button, confirm, copyable, dialog, empty, fail, field, icon, iconButton, notice, now, problem } from '../ui/parts.js'

const BLOCK = 8 << 20
const PREVIEW = 1 << 20
const PAGE = 100
const text = (element, key) => child(element, key).text
const blobPath = (container, blob) => `/${encode(container)}/${encodeURIComponent(blob)}`

export function blobsScreen({ account }) {
  return h('div', { class: 'screen' }, () => {
    const [, container] = route().segments
    const blob = route().query.get('blob')
    if (!container) return containers(account)
    return blob ? details(account(), container, blob) : listing(account(), container)
  })
}

function leaseBadge(properties) {
  const state = text(properties, 'LeaseState')
  return state && state !== 'available' && badge(t(`lease.${state}`), state === 'leased' || state === 'breaking' ? 'warn' : 'outline')
}

function containers(account) {
  const items = signal(null)
  const marker = signal('')
  const prefix = signal('')
  const failure = signal(null)
  const load = async (more) => {
    try {
      const query = new URLSearchParams({ comp: 'list', maxresults: PAGE, include: 'metadata', prefix: prefix.peek(), ...(more ? { marker: marker.peek() } : {}) })
      const root = child(parse(await (await storage('GET', 'blob', account.peek(), `/?${query}`)).text()), 'EnumerationResults')
      items.set([...(more ? items.peek() : []), ...all(child(root, 'Containers'), 'Container')])
      marker.set(text(root, 'NextMarker'))
      failure.set(null)
    } catch (error) {
      failure.set(error)
    }
  }
  effect(() => { account(); prefix(); load(false) })
  const create = () => dialog(t('container.create'), (close) => {
    let input
    const wrong = signal(null)
    return h('form', { onsubmit: async (event) => {
      event.preventDefault()
      try {
        await storage('PUT', 'blob', account.peek(), `/${encode(input.value)}?restype=container`)
        close(true)
        load(false)
        notice(t('container.created', { name: input.value }))
      } catch (error) { wrong.set(error) }
    } }, () => wrong() && problem(wrong()), field(t('name'), h('input', { type: 'text', required: true, autofocus: true, minlength: 3, maxlength: 63, pattern: '[a-z0-9]([a-z0-9]|-(?=[a-z0-9]))+|[$](root|web|logs)', spellcheck: 'false', ref: (node) => (input = node) }), t('container.name.hint')),
      h('footer', {}, button(t('cancel'), () => close()), h('button', { type: 'submit', class: 'button primary' }, t('create'))))
  }, 'narrow')
  const remove = async (container) => {
    if (!(await confirm(t('container.delete'), t('container.delete.text', { name: container }), t('delete'), container))) return
    await storage('DELETE', 'blob', account.peek(), `/${encode(container)}?restype=container`)
    load(false)
  }
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.blobs')), h('p', { class: 'lead' }, t('containers.lead'))),
      h('div', { class: 'actions' }, h('input', { type: 'search', placeholder: t('filter.prefix'), 'aria-label': t('filter.prefix'), oninput: (event) => prefix.set(event.target.value) }), button(t('container.create'), create, { kind: 'primary', symbol: 'plus' }))),
    h('section', { class: 'card flush' },
      () => failure() && problem(failure()),
      () => items()?.length === 0 && empty('blobs', t('containers.empty'), t('containers.empty.text'), button(t('container.create'), create, { kind: 'primary', symbol: 'plus' })),
      () => items()?.length > 0 && h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('nav.blobs') }, h('table', { class: 'rows' },
        h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, t('name')), h('th', { scope: 'col' }, t('col.access')), h('th', { scope: 'col' }, t('col.lease')), h('th', { scope: 'col' }, t('col.modified')), h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('actions'))))),
        h('tbody', {}, each(items, (it) => text(it, 'Name'), (item) => {
          const properties = () => child(item(), 'Properties')
          const container = text(item(), 'Name')
          return h('tr', {}, h('th', { scope: 'row' }, h('a', { class: 'entry', href: link(['blobs', container]) }, icon('blobs'), h('span', {}, name(container)))),
            h('td', {}, () => badge(text(properties(), 'PublicAccess') || t('access.private'), text(properties(), 'PublicAccess') ? 'warn' : 'outline')), h('td', {}, () => leaseBadge(properties()) || '–'), h('td', {}, () => moment(text(properties(), 'Last-Modified'))),
            h('td', { class: 'row-actions' }, iconButton('trash', `${t('delete')} ${container}`, () => remove(container).catch(fail))))
        })))),
      () => marker() && h('p', { class: 'more' }, button(t('more'), () => load(true))))]
}

function listing(account, container) {
  const prefix = route.peek().query.get('prefix') ?? ''
  const items = signal(null)
  const marker = signal('')
  const search = signal('')
  const failure = signal(null)
  const selected = signal(new Set())
  const load = async (more) => {
    try {
      const query = new URLSearchParams({ restype: 'container', comp: 'list', delimiter: '/', maxresults: PAGE, include: 'metadata', prefix: prefix + search.peek(), ...(more ? { marker: marker.peek() } : {}) })
      const root = child(parse(await (await storage('GET', 'blob', account, `/${encode(container)}?${query}`)).text()), 'EnumerationResults')
      const blobs = child(root, 'Blobs')
      const found = [...all(blobs, 'BlobPrefix').map((it) => ({ folder: true, name: text(it, 'Name') })), ...all(blobs, 'Blob').map((it) => ({ name: text(it, 'Name'), properties: child(it, 'Properties') }))]
      items.set([...(more ? items.peek() : []), ...found])
      marker.set(text(root, 'NextMarker'))
      failure.set(null)
    } catch (error) {
      failure.set(error)
    }
  }
  effect(() => { search(); load(false) })
  const transfers = signal([])
  const send = async (files) => {
    for (const file of files) {
      const transfer = { id: crypto.randomUUID(), name: prefix + (file.webkitRelativePath || file.name), size: file.size, sent: signal(0), state: signal('waiting'), control: new AbortController(), since: Date.now() }
      transfers.update((list) => [...list, transfer])
      queue.push([file, transfer])
    }
    work()
  }
  const queue = []
  let working = 0
  const work = async () => {
    while (working < 2 && queue.length) {
      const [file, transfer] = queue.shift()
      working++
      run(file, transfer).finally(() => { working--; work() })
    }
  }
  const run = async (file, transfer) => {
    transfer.state.set('running')
    transfer.since = Date.now()
    try {
      await sendFile(account, container, transfer.name, file, transfer)
      transfer.state.set('done')
      load(false)
    } catch (error) {
      if (error.name === 'AbortError') return transfer.state.set('canceled')
      if (error.code === 'BlobAlreadyExists') {
        const overwrite = await confirm(t('upload.exists'), t('upload.exists.text', { name: name(transfer.name) }), t('upload.overwrite'))
        if (!overwrite) return transfer.state.set('skipped')
        transfer.overwrite = true
        return run(file, transfer)
      }
      transfer.problem = error
      transfer.state.set('failed')
    }
  }
  onEnd(() => transfers.peek().forEach((it) => ['running', 'waiting'].includes(it.state.peek()) && it.control.abort()))
  let picker
  const over = signal(false)
  const remove = async (names) => {
    if (!(await confirm(t('blob.delete'), t('blob.delete.text', { count: names.length, name: name(names[0]) }), t('delete')))) return
    for (const blob of names) await storage('DELETE', 'blob', account, blobPath(container, blob), { headers: { 'x-ms-delete-snapshots': 'include' } })
    selected.set(new Set())
    load(false)
  }
  const crumbs = () => {
    const steps = prefix.split('/').filter(Boolean)
    return h('nav', { class: 'crumbs', 'aria-label': t('path') }, h('a', { href: link(['blobs']) }, t('nav.blobs')), h('a', { href: link(['blobs', container]) }, name(container)), steps.map((step, i) => h('a', { href: link(['blobs', container], { prefix: steps.slice(0, i + 1).join('/') + '/' }) }, name(step))))
  }
  const toggle = (blob, on) => selected.update((set) => { const next = new Set(set); on ? next.add(blob) : next.delete(blob); return next })
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', { class: 'sr' }, name(container)), crumbs()),
      h('div', { class: 'actions' }, h('input', { type: 'search', placeholder: t('filter.prefix'), 'aria-label': t('filter.prefix'), oninput: (event) => search.set(event.target.value) }),
        () => selected().size > 0 && button(`${t('delete')} (${selected().size})`, () => remove([...selected()]).catch(fail), { kind: 'danger', symbol: 'trash' }),
        button(t('sas'), () => sasDialog({ account, service: 'blob', container }), { symbol: 'key' }),
        h('input', { type: 'file', multiple: true, class: 'sr', tabindex: '-1', 'aria-hidden': 'true', ref: (node) => (picker = node), onchange: () => { send([...picker.files]); picker.value = '' } }),
        button(t('upload'), () => picker.click(), { kind: 'primary', symbol: 'up' }))),
    () => transfers().length > 0 && h('section', { class: 'card' }, h('div', { class: 'card-head' }, h('h2', {}, t('transfers')), button(t('clear'), () => transfers.update((list) => list.filter((it) => ['running', 'waiting'].includes(it.state.peek()))), { kind: 'small' })),
      h('ul', { class: 'transfers' }, each(transfers, (it) => it.id, (item) => transferRow(item())))),
    h('section', { class: () => `card flush drop ${over() ? 'over' : ''}`, ondragover: (event) => { event.preventDefault(); over.set(true) }, ondragleave: () => over.set(false), ondrop: (event) => { event.preventDefault(); over.set(false); send([...event.dataTransfer.files]) } },
      () => failure() && problem(failure()),
      () => items()?.length === 0 && empty('up', t('blobs.empty'), t('blobs.empty.text'), button(t('upload'), () => picker.click(), { kind: 'primary', symbol: 'up' })),
      () => items()?.length > 0 && h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': name(container) }, h('table', { class: 'rows' },
        h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('select'))), h('th', { scope: 'col' }, t('name')), h('th', { scope: 'col' }, t('col.type')), h('th', { scope: 'col', class: 'num' }, t('col.size')), h('th', { scope: 'col' }, t('col.lease')), h('th', { scope: 'col' }, t('col.modified')), h('th', { scope: 'col' }, h('span', { class: 'sr' }, t('actions'))))),
        h('tbody', {}, each(items, (it) => it.name, (item) => {
          const it = item()
          const shown = name(it.name.slice(prefix.length))
          if (it.folder) return h('tr', {}, h('td', {}), h('th', { scope: 'row' }, h('a', { class: 'entry', href: link(['blobs', container], { prefix: it.name }) }, icon('folder'), h('span', {}, shown))), h('td', { colspan: 5 }))
          const properties = () => child(item().properties, '') && item().properties
          return h('tr', {}, h('td', {}, h('input', { type: 'checkbox', 'aria-label': `${t('select')} ${shown}`, checked: () => selected().has(it.name), onchange: (event) => toggle(it.name, event.target.checked) })),
            h('th', { scope: 'row' }, h('a', { class: 'entry', href: link(['blobs', container], { prefix, blob: it.name }) }, icon('file'), h('span', {}, shown))),
            h('td', {}, () => name(text(properties(), 'Content-Type'))), h('td', { class: 'num' }, () => bytes(Number(text(properties(), 'Content-Length')))), h('td', {}, () => leaseBadge(properties()) || '–'), h('td', {}, () => moment(text(properties(), 'Last-Modified'))),
            h('td', { class: 'row-actions' }, iconButton('down', `${t('download')} ${shown}`, () => download('blob', account, blobPath(container, it.name), it.name.split('/').pop()).catch(fail)), iconButton('trash', `${t('delete')} ${shown}`, () => remove([it.name]).catch(fail))))
        })))),
      () => marker() && h('p', { class: 'more' }, button(t('more'), () => load(true))))]
}

function transferRow(transfer) {
  const share = () => (transfer.size ? transfer.sent() / transfer.size : transfer.state() === 'done' ? 1 : 0)
  const rate = () => { now(); const time = (Date.now() - transfer.since) / 1000; return time > 0.3 ? `${bytes(transfer.sent() / time)}/s` : '' }
  return h('li', {}, h('span', { class: 'transfer-name' }, name(transfer.name)), h('progress', { max: 1, value: share, 'aria-label': name(transfer.name) }),
    h('span', { class: 'hint' }, () => (transfer.state() === 'running' ? `${bytes(transfer.sent())} / ${bytes(transfer.size)} · ${rate()}` : transfer.state() === 'failed' ? `${t('transfer.failed')}: ${transfer.problem.code}` : t(`transfer.${transfer.state()}`))),
    () => ['running', 'waiting'].includes(transfer.state()) && iconButton('close', `${t('cancel')} ${name(transfer.name)}`, () => { transfer.control.abort(); transfer.state.set('canceled') }))
}

/** Uploads a file: a small one at once, a large one as blocks, four at a time. Replaces nothing unless the reader agreed. */
async function sendFile(account, container, blob, file, transfer) {
  const path = blobPath(container, blob)
  const type = file.type || 'application/octet-stream'
  const condition = transfer.overwrite ? {} : { 'if-none-match': '*' }
  const signal = transfer.control.signal
  if (file.size <= BLOCK) {
    await upload('blob', account, path, { headers: { ...condition, 'x-ms-blob-type': 'BlockBlob', 'x-ms-blob-content-type': type }, body: file, signal, onprogress: (sent) => transfer.sent.set(sent) })
    transfer.sent.set(file.size)
    return
  }
  const ids = []
  for (let at = 0; at < file.size; at += BLOCK) ids.push(btoa(`block-${String(at / BLOCK).padStart(8, '0')}`))
  if (!transfer.overwrite) {
    const exists = await storage('HEAD', 'blob', account, path, { any: true, signal })
    if (exists.ok) throw new Problem(409, 'BlobAlreadyExists', '')
  }
  transfer.finished ??= new Map()
  const progress = new Map()
  const report = () => transfer.sent.set([...progress.values(), ...[...transfer.finished.values()]].reduce((a, b) => a + b, 0))
  let next = 0
  const worker = async () => {
    while (next < ids.length) {
      const index = next++
      if (transfer.finished.has(index)) continue
      const body = file.slice(index * BLOCK, (index + 1) * BLOCK)
      await upload('blob', account, `${path}?comp=block&blockid=${encodeURIComponent(ids[index])}`, { body, signal, onprogress: (sent) => { progress.set(index, Math.min(sent, body.size)); report() } })
      progress.delete(index)
      transfer.finished.set(index, body.size)
      report()
    }
  }
  await Promise.all([1, 2, 3, 4].map(worker))
  const body = `<?xml version="1.0" encoding="utf-8"?><BlockList>${ids.map((id) => `<Latest>${id}</Latest>`).join('')}</BlockList>`
  await storage('PUT', 'blob', account, `${path}?comp=blocklist`, { headers: { ...condition, 'x-ms-blob-content-type': type }, body, signal })
}

const TABS = ['content', 'properties', 'history', 'lease']

function details(account, container, blob) {
  const prefix = route.peek().query.get('prefix') ?? ''
  const tab = signal('content')
  const facts = signal(null)
  const failure = signal(null)
  const path = blobPath(container, blob)
  const load = () => storage('HEAD', 'blob', account, path).then((reply) => facts.set(Object.fromEntries(reply.headers)), (error) => failure.set(error))
  load()
  const views = { content: () => contentView(account, path, facts, load), properties: () => propertiesView(facts()), history: () => historyView(account, container, blob, load), lease: () => leaseView(account, path, facts, load, container, blob) }
  const steps = prefix.split('/').filter(Boolean)
  return [
    h('div', { class: 'screen-head' }, h('div', {}, h('nav', { class: 'crumbs', 'aria-label': t('path') }, h('a', { href: link(['blobs']) }, t('nav.blobs')), h('a', { href: link(['blobs', container]) }, name(container)), steps.map((step, i) => h('a', { href: link(['blobs', container], { prefix: steps.slice(0, i + 1).join('/') + '/' }) }, name(step)))),
      h('h1', { class: 'object' }, name(blob.slice(prefix.length)))),
      h('div', { class: 'actions' }, button(t('sas'), () => sasDialog({ account, service: 'blob', container, object: blob }), { symbol: 'key' }), button(t('download'), () => download('blob', account, path, blob.split('/').pop()).catch(fail), { kind: 'primary', symbol: 'down' }))),
    () => failure() && problem(failure()),
    () => facts() && h('section', { class: 'card' },
      h('div', { class: 'segments tabs', role: 'tablist', 'aria-label': name(blob), onkeydown: (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key]
        if (!step) return
        const next = TABS[(TABS.indexOf(tab.peek()) + step + TABS.length) % TABS.length]
        tab.set(next)
        document.getElementById(`tab-${next}`)?.focus()
      } }, TABS.map((it) => h('button', { type: 'button', role: 'tab', id: `tab-${it}`, 'aria-controls': 'panel', 'aria-selected': () => String(tab() === it), tabindex: () => (tab() === it ? '0' : '-1'), onclick: () => tab.set(it) }, t(`tab.${it}`)))),
      h('div', { role: 'tabpanel', id: 'panel', 'aria-labelledby': () => `tab-${tab()}`, tabindex: '0' }, () => views[tab()]()))]
}

function contentView(account, path, facts, reload) {
  const size = Number(facts.peek()['content-length'])
  const type = facts.peek()['content-type'] ?? ''
  const etag = facts.peek().etag
  if (type.startsWith('image/') && size <= 20 << 20) {
    const source = signal(null)
    storage('GET', 'blob', account, path).then((reply) => reply.blob()).then((content) => { const url = URL.createObjectURL(content); source.set(url); onEnd(() => URL.revokeObjectURL(url)) }, fail)
    return h('div', { class: 'preview image' }, () => source() && h('img', { src: source(), alt: '' }))
  }
  const content = signal(null)
  const failure = signal(null)
  const pretty = signal(true)
  storage('GET', 'blob', account, path, size ? { headers: { 'x-ms-range': `bytes=0-${PREVIEW - 1}` } } : {}).then((reply) => reply.arrayBuffer()).then((buffer) => content.set(new Uint8Array(buffer)), (error) => failure.set(error))
  const shown = computed(() => {
    if (!content()) return null
    try {
      const decoded = new TextDecoder('utf-8', { fatal: size <= PREVIEW }).decode(content())
      if (/[\u0000-\u0008\u000e-\u001f]/.test(decoded)) return { binary: true }
      if (pretty() && (type.includes('json') || /^\s*[{[]/.test(decoded)) && size <= PREVIEW) {
        try { return { text: JSON.stringify(JSON.parse(decoded), null, 2), json: true, original: decoded } } catch { return { text: decoded } }
      }
      return { text: decoded, original: decoded, json: type.includes('json') }
    } catch { return { binary: true } }
  })
  const edit = () => dialog(t('edit'), (close) => {
    let area
    const wrong = signal(null)
    const save = async (condition) => {
      try {
        const metadata = Object.fromEntries(Object.entries(facts.peek()).filter(([key]) => key.startsWith('x-ms-meta-')))
        await storage('PUT', 'blob', account, path, { body: area.value, headers: { ...condition, ...metadata, 'x-ms-blob-type': 'BlockBlob', 'x-ms-blob-content-type': type || 'text/plain' } })
        close(true)
        notice(t('saved'))
        reload()
      } catch (error) { wrong.set(error) }
    }
    return h('form', { onsubmit: (event) => { event.preventDefault(); save({ 'if-match': etag }) } },
      () => wrong() && [problem(wrong()), wrong().code === 'ConditionNotMet' && h('div', { class: 'choice' }, h('p', {}, t('edit.conflict')), h('div', { class: 'actions' }, button(t('edit.theirs'), () => { close(true); reload() }), button(t('edit.overwrite'), () => save({ 'if-match': '*' }), { kind: 'danger' })))],
      h('textarea', { class: 'editor', spellcheck: 'false', 'aria-label': t('tab.content'), autofocus: true, ref: (node) => (area = node), value: shown().original ?? shown().text }),
      h('footer', {}, h('span', { class: 'hint' }, t('edit.etag', { etag })), button(t('cancel'), () => close()), h('button', { type: 'submit', class: 'button primary' }, t('save'))))
  }, 'wide')
  return h('div', { class: 'preview' }, () => failure() && problem(failure()),
    h('div', { class: 'preview-head' }, h('span', { class: 'hint' }, size > PREVIEW ? t('preview.part', { shown: bytes(PREVIEW), size: bytes(size) }) : `${bytes(size)} · ${name(type)}`),
      () => shown()?.json && button(pretty() ? t('preview.original') : t('preview.pretty'), () => pretty.update((it) => !it), { kind: 'small' }),
      () => shown() && !shown().binary && size <= PREVIEW && facts()['x-ms-blob-type'] === 'BlockBlob' && button(t('edit'), edit, { kind: 'small' })),
    () => shown() && (shown().binary ? h('pre', { tabindex: '0', class: 'hex' }, hex(content().subarray(0, 4096))) : h('pre', { tabindex: '0' }, shown().text || ' ')))
}

function hex(data) {
  const lines = []
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)]
    lines.push(`${at.toString(16).padStart(8, '0')}  ${row.map((byte) => byte.toString(16).padStart(2, '0')).join(' ').padEnd(47)}  ${row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('')}`)
  }
  return lines.join('\n')
}

function propertiesView(facts) {
  const hide = /^(content-security|cross-origin|referrer|x-content|x-frame|cache-control|date|server|vary|x-ms-request|x-ms-version$|content-disposition)/
  const rows = Object.entries(facts).filter(([key]) => !hide.test(key))
  return h('dl', { class: 'facts wide' }, rows.map(([key, value]) => h('div', {}, h('dt', {}, key.replace(/^x-ms-/, '')), h('dd', {}, h('code', {}, name(value))))))
}

function historyView(account, container, blob, reload) {
  const items = signal(null)
  const load = async () => {
    const query = new URLSearchParams({ restype: 'container', comp: 'list', prefix: blob, include: 'snapshots,versions,deleted', maxresults: 500 })
    const root = child(parse(await (await storage('GET', 'blob', account, `/${encode(container)}?${query}`)).text()), 'EnumerationResults')
    const own = all(child(root, 'Blobs'), 'Blob').filter((it) => text(it, 'Name') === blob)
    items.set(own.map((it) => ({ snapshot: text(it, 'Snapshot'), version: text(it, 'VersionId'), current: text(it, 'IsCurrentVersion') === 'true' || (!text(it, 'Snapshot') && !text(it, 'VersionId') && text(it, 'Deleted') !== 'true'), deleted: text(it, 'Deleted') === 'true', properties: child(it, 'Properties') })).sort((a, b) => Date.parse(text(b.properties, 'Last-Modified')) - Date.parse(text(a.properties, 'Last-Modified'))))
  }
  load().catch(fail)
  const path = blobPath(container, blob)
  const snapshot = async () => { await storage('PUT', 'blob', account, `${path}?comp=snapshot`); await load() }
  const query = (it) => (it.version ? `?versionid=${encodeURIComponent(it.version)}` : it.snapshot ? `?snapshot=${encodeURIComponent(it.snapshot)}` : '')
  return h('div', {}, h('div', { class: 'preview-head' }, h('span', { class: 'hint' }, t('history.lead')), button(t('history.snapshot'), () => snapshot().catch(fail), { kind: 'small', symbol: 'plus' })),
    h('ol', { class: 'timeline' }, each(() => items() ?? [], (it) => it.version + it.snapshot, (item) => { const it = item(); return h('li', { class: it.current ? 'current' : '' },
      h('div', {}, badge(it.deleted ? t('history.deleted') : it.snapshot ? t('history.snapshot.one') : it.current ? t('history.current') : t('history.version'), it.current ? 'good' : it.deleted ? 'bad' : 'outline'), ' ', h('b', {}, moment(text(it.properties, 'Last-Modified'))), ' ', h('span', { class: 'hint' }, bytes(Number(text(it.properties, 'Content-Length'))))),
      h('code', { class: 'etag' }, text(it.properties, 'Etag')),
      h('div', { class: 'actions' }, !it.deleted && button(t('download'), () => download('blob', account, path + query(it), blob.split('/').pop()).catch(fail), { kind: 'small' }),
        it.snapshot && button(t('delete'), async () => { if (await confirm(t('history.delete'), moment(it.snapshot), t('delete'))) storage('DELETE', 'blob', account, path + query(it)).then(load, fail) }, { kind: 'small' }))) })))
}

function leaseView(account, path, facts, reload, container, blob) {
  const state = () => facts()['x-ms-lease-state'] ?? 'available'
  const known = signal(null)
  const held = signal(sessionStorage.getItem(`lease:${account}${path}`))
  const look = () => call('GET', 'leases').then(({ items }) => known.set(items.find((it) => it.account === account && it.resource === `/${container}/${blob}`) ?? null), fail)
  look()
  const act = async (headers, keep) => {
    const reply = await storage('PUT', 'blob', account, `${path}?comp=lease`, { headers })
    const id = reply.headers.get('x-ms-lease-id')
    held.set(keep ? id : null)
    if (keep && id) sessionStorage.setItem(`lease:${account}${path}`, id)
    else sessionStorage.removeItem(`lease:${account}${path}`)
    await reload()
    await look()
  }
  let duration
  const breakIt = async () => {
    const holder = known.peek() ? agent(known.peek().holder.client.agent) || known.peek().holder.client.peer : t('client.unknown')
    if (await confirm(t('lease.break.title'), t('lease.break.text', { what: name(blob), holder: name(holder) }), t('lease.break'), blob.split('/').pop())) await act({ 'x-ms-lease-action': 'break', 'x-ms-lease-break-period': '0' }, false)
  }
  return h('div', { class: 'lease-panel' },
    h('p', {}, badge(() => t(`lease.${state()}`), 'outline'), ' ', () => known() && t('lease.holder', { holder: name(`${agent(known().holder.client.agent)} (${known().holder.client.peer})`), id: known().id }), ' ', () => known()?.until && h('b', { class: 'countdown' }, span((Date.parse(known().until) - now()) / 1000))),
    h('div', { class: 'actions' },
      h('label', { class: 'check' }, h('span', {}, t('lease.duration')), h('select', { ref: (node) => (duration = node) }, [15, 30, 60, -1].map((it) => h('option', { value: it }, it < 0 ? t('lease.infinite') : `${it} s`)))),
      () => ['available', 'expired', 'broken'].includes(state()) && button(t('lease.acquire'), () => act({ 'x-ms-lease-action': 'acquire', 'x-ms-lease-duration': duration.value }, true).catch(fail), { kind: 'primary', symbol: 'lock' }),
      () => held() && ['leased'].includes(state()) && [button(t('lease.renew'), () => act({ 'x-ms-lease-action': 'renew', 'x-ms-lease-id': held() }, true).catch(fail)), button(t('lease.release'), () => act({ 'x-ms-lease-action': 'release', 'x-ms-lease-id': held() }, false).catch(fail))],
      () => ['leased', 'breaking'].includes(state()) && button(t('lease.break'), () => breakIt().catch(fail), { kind: 'danger' })),
    h('p', { class: 'hint' }, t('lease.hint')))
}

/** Creates a shared access signature. The key never leaves the server. */
export function sasDialog({ account, service, container, object }) {
  const letters = object ? { r: 'read', w: 'write', d: 'delete', a: 'add', c: 'create' } : { r: 'read', l: 'list', w: 'write', d: 'delete', a: 'add', c: 'create' }
  const chosen = signal(new Set(object ? ['r'] : ['r', 'l']))
  const result = signal(null)
  const wrong = signal(null)
  let [amount, unit] = [null, null]
  const order = 'racwdxltmeopi'
  return dialog(t('sas.title'), (close) => h('form', { onsubmit: async (event) => {
    event.preventDefault()
    wrong.set(null)
    try {
      const permissions = [...chosen.peek()].sort((a, b) => order.indexOf(a) - order.indexOf(b)).join('')
      result.set(await call('POST', 'sas', { account, service, container, object, permissions, hours: Number(amount.value) * Number(unit.value) }))
    } catch (error) { wrong.set(error) }
  } }, () => wrong() && problem(wrong()), h('p', { class: 'hint' }, t('sas.for', { what: name([container, object].filter(Boolean).join('/')) })),
    h('fieldset', {}, h('legend', {}, t('sas.permissions')), Object.entries(letters).map(([letter, key]) => h('label', { class: 'check' }, h('input', { type: 'checkbox', checked: () => chosen().has(letter), onchange: (event) => chosen.update((set) => { const next = new Set(set); event.target.checked ? next.add(letter) : next.delete(letter); return next }) }), h('span', {}, t(`permission.${key}`))))),
    h('div', { class: 'inline' }, field(t('sas.valid'), h('input', { type: 'number', min: 1, max: 3650, value: 24, required: true, ref: (node) => (amount = node) })), field(t('sas.unit'), h('select', { ref: (node) => (unit = node) }, h('option', { value: 1 }, t('sas.hours')), h('option', { value: 24 }, t('sas.days'))))),
    () => result() && h('div', { class: 'result' }, h('h3', {}, 'URL'), copyable(result().url ?? ''), h('p', { class: 'hint' }, t('sas.until', { time: moment(result().expires) }))),
    h('footer', {}, button(t('close'), () => close()), h('button', { type: 'submit', class: 'button primary' }, t('create')))))
}
