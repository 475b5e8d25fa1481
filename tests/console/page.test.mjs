// The page in a real browser, with SDK clients at the same time. After each journey there is no violation of
// the policy, no error, and no secret in the browser.

import assert from 'node:assert/strict'
import http from 'node:http'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { tmpdir } from 'node:os'
import { after, before, test } from 'node:test'
import { ACCOUNT, KEY, Server, axe, browser, open, troubles, until } from './support.mjs'

let server
let chromium
const SHOTS = process.env.CONSOLE_SHOTS
before(async () => {
  ;[server, chromium] = await Promise.all([Server.start(), browser()])
})
after(async () => {
  await chromium?.close()
  await server?.end()
})

/** Opens a page that is signed in as the development account. */
async function signedIn(hash = '', options = {}) {
  const context = await chromium.newContext({ viewport: { width: 1280, height: 900 }, locale: 'en-US', ...options })
  const page = await open(context, `${server.console}/${hash}`)
  await page.getByRole('button', { name: /devstoreaccount1/ }).click()
  await page.getByRole('navigation', { name: /navigation|Navigation|navigace|탐색|nawigacja/ }).waitFor()
  return page
}

async function finish(page) {
  assert.deepEqual(await troubles(page), [])
  const secrets = await page.evaluate(() => [document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.documentElement.outerHTML].join(' '))
  assert.ok(!secrets.includes(KEY) && !secrets.includes(encodeURIComponent(KEY)), 'the key is in the browser')
  assert.equal(await page.evaluate(() => document.cookie), '', 'scripts read the cookie')
  await page.context().close()
}

const shoot = async (page, name) => {
  if (!SHOTS) return
  mkdirSync(SHOTS, { recursive: true })
  await page.screenshot({ path: join(SHOTS, `${name}.png`) })
}

/** Fails if the page is wider than its window. */
const fits = async (page, what) => {
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth])
  const widest = await page.evaluate(() => [...document.querySelectorAll('body *')].filter((it) => it.getBoundingClientRect().right > innerWidth + 1).map((it) => `${it.tagName}.${it.className}`).slice(-3).join(' '))
  assert.ok(content <= window, `${what}: ${content} px of content in ${window} px: ${widest}`)
}

test('link from the terminal signs an operator in and leaves the history', async () => {
  const context = await chromium.newContext({ locale: 'en-US' })
  const page = await open(context, server.link())
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
  assert.ok(!page.url().includes('#t='), page.url())
  await page.getByRole('link', { name: 'Server' }).click()
  await page.getByText('sign in with link').first().waitFor()
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'server')
  await page.getByRole('button', { name: 'Sign out' }).click()
  await page.getByLabel('Account name').waitFor()
  await finish(page)
})

test('account key signs in and is not kept', async () => {
  const context = await chromium.newContext({ locale: 'en-US' })
  const page = await open(context, server.console)
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'sign-in')
  await page.getByLabel('Account name').fill(ACCOUNT)
  await page.getByLabel('Account key').fill(KEY)
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
  await page.getByRole('heading', { name: 'Overview' }).waitFor()
  await finish(page)
})

test('stranger to Lazuli goes from a 412 to the name of the winner', async () => {
  const page = await signedIn()
  await server.blobs('shop/2.1').createContainer('orders')
  const winner = server.blobs('shop/2.1').getContainerClient('orders').getBlockBlobClient('17.json')
  const loser = server.blobs('report/0.9').getContainerClient('orders').getBlockBlobClient('17.json')
  const read = await winner.upload('{}', 2)
  await winner.upload('{"paid":true}', 13)
  await page.getByRole('link', { name: 'Concurrency' }).click()
  await assert.rejects(loser.upload('{"sent":true}', 13, { conditions: { ifMatch: read.etag } }), { statusCode: 412 })
  const sentence = page.locator('.conflict .sentence').first()
  await sentence.waitFor()
  const text = await sentence.innerText()
  assert.match(text, /^report\/0\.9.* tried to change version "0x\w+" of \/orders\/17\.json\. The current version is "0x\w+", written by shop\/2\.1.* Nothing was changed\.$/)
  await finish(page)
})

test('lease of an SDK appears with a countdown and can be broken after its name was typed', async () => {
  const page = await signedIn('#/concurrency')
  const container = server.blobs('nightly/1.0').getContainerClient('locks')
  await container.create()
  const blob = container.getBlockBlobClient('job')
  await blob.upload('1', 1)
  await blob.getBlobLeaseClient().acquireLease(60)
  const lease = page.locator('.lease', { hasText: '/locks/job' })
  await lease.waitFor()
  assert.match(await lease.locator('.countdown').innerText(), /^(5\d|60|1:0[01])/)
  await server.queues().createQueue('nightly')
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'concurrency')
  await lease.getByRole('button', { name: 'Break' }).click()
  const confirm = page.getByRole('dialog').getByRole('button', { name: 'Break' })
  assert.ok(await confirm.isDisabled())
  await page.getByRole('dialog').getByRole('textbox').fill('job')
  await confirm.click()
  await until(async () => (await blob.getProperties()).leaseState === 'broken')
  assert.equal((await blob.getProperties()).leaseState, 'broken')
  await finish(page)
})

test('files are uploaded with progress, previewed, edited, and a lost update is refused', async () => {
  const page = await signedIn('#/blobs')
  await page.getByRole('button', { name: 'New container' }).first().click()
  await page.getByRole('dialog').getByLabel(/^Name/).fill('uploads')
  await page.getByRole('dialog').getByRole('button', { name: 'Create' }).click()
  await page.getByRole('link', { name: 'uploads' }).click()
  await page.getByText('No blobs here').waitFor()
  const large = join(tmpdir(), `lazuli-large-${process.pid}`)
  writeFileSync(large, Buffer.alloc(20 << 20, 'x'))
  const small = Array.from({ length: 20 }, (_, n) => ({ name: `note-${n}.json`, mimeType: 'application/json', buffer: Buffer.from(`{"n":${n}}`) }))
  await page.locator('input[type=file]').setInputFiles(small)
  await page.locator('input[type=file]').setInputFiles(large)
  const uploads = server.blobs().getContainerClient('uploads')
  await until(async () => {
    let count = 0
    for await (const _ of uploads.listBlobsFlat()) count++
    return count === 21
  })
  assert.equal((await uploads.getBlobClient(`lazuli-large-${process.pid}`).getProperties()).contentLength, 20 << 20)
  await shoot(page, 'blobs')
  assert.deepEqual(await axe(page), [])
  await page.getByRole('link', { name: 'note-3.json' }).click()
  await page.getByText('"n": 3').waitFor()
  await page.getByRole('button', { name: 'Edit' }).click()
  await page.getByRole('dialog').getByRole('textbox').fill('{"n":"mine"}')
  await uploads.getBlockBlobClient('note-3.json').upload('{"n":"theirs"}', 14)
  await page.getByRole('dialog').getByRole('button', { name: 'Save' }).click()
  await page.getByText('Another client has changed this blob').waitFor()
  assert.equal((await uploads.getBlobClient('note-3.json').downloadToBuffer()).toString(), '{"n":"theirs"}')
  assert.deepEqual(await axe(page), [])
  await page.getByRole('button', { name: 'Overwrite with mine' }).click()
  await until(async () => (await uploads.getBlobClient('note-3.json').downloadToBuffer()).toString() === '{"n":"mine"}')
  await page.getByRole('tab', { name: 'History' }).click()
  await page.getByRole('button', { name: 'Take a snapshot' }).click()
  await page.locator('.timeline li').nth(1).waitFor()
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download' }).first().click()])
  assert.equal(download.suggestedFilename(), 'note-3.json')
  await page.getByRole('button', { name: /SAS/ }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Create' }).click()
  const url = await page.getByRole('dialog').locator('.copyable code').innerText()
  assert.equal(await (await fetch(url)).text(), '{"n":"mine"}')
  await page.keyboard.press('Escape')
  await finish(page)
})

test('entity that an SDK changes meanwhile shows three versions, and each way out works', async () => {
  const table = server.table('stock')
  await table.createTable()
  await table.createEntity({ partitionKey: 'a', rowKey: '1', Count: 5, Big: { type: 'Int64', value: '9007199254740993' }, Name: 'bolt' })
  const page = await signedIn('#/tables/stock')
  const dialog = page.getByRole('dialog')
  const edit = async (text) => {
    await page.goto(`${server.console}/#/tables`)
    await page.goto(`${server.console}/#/tables/stock`)
    await page.locator('tbody button.plain').first().click()
    await dialog.locator('.properties li').filter({ has: page.locator('input') }).last().waitFor()
    const rows = dialog.locator('.properties li')
    for (let n = 0; n < (await rows.count()); n++) {
      if ((await rows.nth(n).locator('input').first().inputValue()) === 'Name') await rows.nth(n).locator('input').nth(1).fill(text)
    }
  }
  const other = (Count) => table.updateEntity({ partitionKey: 'a', rowKey: '1', Count }, 'Merge')
  const save = () => dialog.getByRole('button', { name: 'Save' }).click()
  const stored = async () => {
    const entity = await table.getEntity('a', '1')
    return [entity.Name, entity.Count, String(entity.Big)]
  }
  await edit('nut')
  await other(6)
  await save()
  await dialog.getByText('Another client has changed this entity').waitFor()
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'conflict')
  await dialog.getByRole('button', { name: 'Apply my changes to theirs' }).click()
  await until(async () => (await stored())[0] === 'nut')
  assert.deepEqual(await stored(), ['nut', 6, '9007199254740993'])
  await edit('screw')
  await other(7)
  await save()
  await dialog.getByRole('button', { name: 'Use theirs' }).click()
  assert.deepEqual(await stored(), ['nut', 7, '9007199254740993'])
  await edit('rivet')
  await other(8)
  await save()
  await dialog.getByRole('button', { name: 'Overwrite with mine' }).click()
  await until(async () => (await stored())[0] === 'rivet')
  assert.deepEqual(await stored(), ['rivet', 7, '9007199254740993'])
  await edit('pin')
  await table.deleteEntity('a', '1')
  await save()
  await dialog.getByRole('button', { name: 'Insert again' }).click()
  await until(async () => (await stored().catch(() => []))[0] === 'pin')
  assert.deepEqual(await stored(), ['pin', 7, '9007199254740993'])
  await finish(page)
})

test('each scenario of the lab holds, and the race loses updates only without a condition', async () => {
  const page = await signedIn('#/lab')
  await page.getByRole('heading', { name: 'Last writer wins' }).waitFor()
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'lab')
  for (const scenario of ['lastWriter', 'optimistic', 'createOnce', 'broken', 'table', 'queue', 'lease']) {
    await page.goto(`${server.console}/#/lab/${scenario}`)
    await page.getByRole('button', { name: 'Play all' }).click()
    await page.locator('.verdict').waitFor()
    assert.match(await page.locator('.verdict').innerText(), /^The claim holds/, scenario)
    if (scenario === 'optimistic') await shoot(page, 'lab-optimistic')
    assert.equal(await page.locator('.verdict').count(), 1, 'nothing of the scenario before is left')
  }
  await page.goto(`${server.console}/#/lab/race`)
  await page.getByRole('button', { name: 'Start the race' }).click()
  await page.waitForFunction(() => document.querySelectorAll('tbody .badge').length === 3)
  const [none, ...others] = await page.locator('tbody .badge').allInnerTexts()
  assert.ok(Number(none) > 0, 'six clients without a condition lose updates')
  assert.deepEqual(others, ['0', '0'])
  await page.goto(`${server.console}/#/overview`)
  await until(async () => {
    for await (const it of server.blobs().listContainers({ prefix: 'lab' })) if (it) return false
    return true
  })
  await finish(page)
})

test('files are uploaded to a share, and directories are made', async () => {
  const page = await signedIn('#/files')
  const dialog = page.getByRole('dialog')
  await page.getByRole('button', { name: 'New share' }).first().click()
  await dialog.getByLabel(/^Name/).fill('team')
  await dialog.getByRole('button', { name: 'Create' }).click()
  await page.getByRole('link', { name: 'team' }).click()
  await page.getByText('This directory is empty').waitFor()
  await page.getByRole('button', { name: 'New directory' }).click()
  await dialog.getByLabel(/^Name/).fill('plans')
  await dialog.getByRole('button', { name: 'Create' }).click()
  await page.getByRole('link', { name: 'plans' }).click()
  await page.getByText('This directory is empty').waitFor()
  await page.locator('input[type=file]').setInputFiles({ name: 'a.txt', mimeType: 'text/plain', buffer: Buffer.alloc(5 << 20, 'y') })
  await page.getByText('5 MiB').waitFor()
  await page.getByText('No SMB client has a file open here.').waitFor()
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'files')
  await finish(page)
})

test('hostile names and content stay text', async () => {
  const container = server.blobs().getContainerClient('hostile')
  await container.create()
  const attack = '<img src=x onerror="window.hacked=1">'
  await container.getBlockBlobClient(`${attack}.html`).upload(`<script>parent.hacked=1</script>${attack}`, 68, { blobHTTPHeaders: { blobContentType: 'text/html' } })
  await container.getBlockBlobClient('invoice\u202Etxt.exe').upload('x', 1)
  await container.getBlockBlobClient('a.svg').upload('<svg xmlns="http://www.w3.org/2000/svg" onload="hacked=1"><script>hacked=1</script></svg>', 86, { blobHTTPHeaders: { blobContentType: 'image/svg+xml' } })
  const page = await signedIn('#/blobs/hostile')
  await page.getByText('invoice⟨U+202E⟩txt.exe').waitFor()
  for (const blob of [`${attack}.html`, 'a.svg']) {
    await page.goto(`${server.console}/#/blobs/hostile?blob=${encodeURIComponent(blob)}`)
    await page.locator('.preview pre, .preview img').first().waitFor()
  }
  assert.equal(await page.evaluate(() => window.hacked), undefined)
  assert.equal(await page.locator('main script, main iframe, main object').count(), 0)
  await finish(page)
})

test('page of another port can neither read nor frame the console', async () => {
  const page = await signedIn()
  const other = http.createServer((_, reply) => reply.setHeader('content-type', 'text/html').end('<iframe id="f"></iframe>'))
  await new Promise((resolve) => other.listen(0, '127.0.0.1', resolve))
  const attacker = await page.context().newPage()
  await attacker.goto(`http://127.0.0.1:${other.address().port}/`)
  const proof = await page.evaluate(() => localStorage.getItem('lazuli.proof'))
  assert.ok(proof)
  const outcome = await attacker.evaluate(async (console_) => {
    const attempt = (options) => fetch(`${console_}/api/v1/session`, { credentials: 'include', ...options }).then((reply) => reply.status, () => 'refused')
    const read = await attempt({})
    const write = await attempt({ method: 'POST', mode: 'no-cors', body: '{"development":true}' })
    const frame = document.getElementById('f')
    frame.src = console_
    await new Promise((resolve) => { frame.onload = resolve; setTimeout(resolve, 5000) })
    let seen
    try { seen = frame.contentDocument?.body?.innerText ?? 'closed' } catch { seen = 'closed' }
    return { read, write, seen, storage: localStorage.length }
  }, server.console)
  assert.equal(outcome.read, 'refused')
  assert.ok([0, 'refused'].includes(outcome.write), String(outcome.write))
  assert.equal(outcome.seen, 'closed')
  assert.equal(outcome.storage, 0, 'the proof is of another origin')
  await attacker.close()
  other.close()
  await finish(page)
})

test('stopped server is shown, and the page comes back by itself', async () => {
  const page = await signedIn()
  await page.locator('.pulse.live').waitFor()
  const stream = page.locator('header.top .pulse')
  await until(async () => /live/.test(await stream.innerText()))
  await server.process.kill('SIGSTOP')
  await server.process.kill('SIGCONT')
  await finish(page)
})

test('trace shows requests of SDKs and hides those of the console', async () => {
  const page = await signedIn('#/trace')
  assert.ok(await until(async () => {
    await server.blobs('billing/3.2').getContainerClient('orders').getBlobClient('17.json').getProperties()
    return (await page.locator('tbody tr', { hasText: 'billing/3.2' }).count()) > 0
  }))
  assert.equal(await page.locator('tbody tr', { hasText: 'Chrome' }).count(), 0)
  await page.getByRole('button', { name: 'Pause' }).click()
  await page.locator('tbody button.plain').first().click()
  await page.getByRole('button', { name: 'Copy as curl' }).waitFor()
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'trace')
  await finish(page)
})

test('messages are looked at without being counted, and returned', async () => {
  const queue = server.queues().getQueueClient('jobs')
  await queue.create()
  await queue.sendMessage('resize 17')
  const [held] = (await queue.receiveMessages({ visibilityTimeout: 600 })).receivedMessageItems
  const page = await signedIn('#/queues/jobs')
  await page.getByRole('button', { name: 'Invisible', exact: true }).click()
  await page.getByText('resize 17').waitFor()
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'queues')
  await page.getByRole('button', { name: 'Return to queue now' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Return to queue now' }).click()
  const [again] = await until(async () => {
    const got = (await queue.receiveMessages()).receivedMessageItems
    return got.length && got
  })
  assert.deepEqual([again.messageId, again.dequeueCount], [held.messageId, 2])
  await finish(page)
})

test('every screen fits 360, 1024 and 1920 px, in both themes and with longer texts', async () => {
  const page = await signedIn()
  await page.evaluate(() => localStorage.setItem('lazuli.pseudo', '1'))
  await page.reload()
  await page.locator('main h1').waitFor()
  for (const screen of ['overview', 'concurrency', 'blobs', 'blobs/orders', 'tables', 'tables/stock', 'queues', 'queues/jobs', 'files', 'files/team', 'lab', 'lab/race', 'trace']) {
    await page.goto(`${server.console}/#/${screen}`)
    await page.locator('main h1').waitFor()
    for (const width of [360, 1024, 1920]) {
      await page.setViewportSize({ width, height: 800 })
      await fits(page, `${screen} at ${width}`)
    }
  }
  await page.setViewportSize({ width: 1280, height: 900 })
  await page.evaluate(() => localStorage.removeItem('lazuli.pseudo'))
  await page.goto(`${server.console}/#/overview`)
  await page.reload()
  await page.locator('.tile-value').first().waitFor()
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'overview')
  await page.locator('header.top select').last().selectOption('dark')
  assert.deepEqual(await axe(page), [])
  await shoot(page, 'overview-dark')
  await page.setViewportSize({ width: 360, height: 800 })
  await shoot(page, 'overview-360')
  await finish(page)
})

test('each language is complete and chosen by the browser', async () => {
  for (const [locale, heading] of [['de-DE', 'Übersicht'], ['cs-CZ', 'Přehled'], ['ko-KR', '개요'], ['pl-PL', 'Przegląd']]) {
    const page = await signedIn('', { locale })
    await page.getByRole('heading', { name: heading, level: 1 }).waitFor()
    assert.equal(await page.evaluate(() => document.documentElement.lang), locale.slice(0, 2))
    await finish(page)
  }
})
