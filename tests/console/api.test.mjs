// The console without a page: sessions, checks of requests, data, streams, tickets, the audit log.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { ACCOUNT, KEY, PATIENCE, Server, until } from './support.mjs'

let server
let session
const rest = (path) => `/storage/blob/${ACCOUNT}${path}`
const V = { 'x-ms-version': '2025-11-05' }

before(async () => {
  server = await Server.start()
  session = await server.signIn({ development: true })
})
after(() => server.end())

const get = (path, headers = session) => server.raw('GET', path, { headers })
const put = (path, body = '', headers = {}) => server.raw('PUT', path, { headers: { ...session, ...V, 'content-length': Buffer.byteLength(body), ...headers }, body })

test('probes need no session and no host', async () => {
  for (const path of ['/healthz', '/readyz', '/metrics']) {
    assert.equal((await get(path, { host: 'anything.example' })).status, 200, path)
  }
})

test('page and assets have a strict policy, and other paths do not exist', async () => {
  const page = await get('/', {})
  assert.equal(page.status, 200)
  assert.equal(page.headers['cache-control'], 'no-store')
  assert.match(page.headers['content-security-policy'], /default-src 'none'.*frame-ancestors 'none'.*trusted-types 'none'/)
  assert.equal(page.headers['x-content-type-options'], 'nosniff')
  const asset = /assets\/[0-9a-f]+\/app\.js/.exec(page.text)[0]
  const script = await get(`/${asset}`, {})
  assert.equal(script.status, 200)
  assert.match(script.headers['cache-control'], /immutable/)
  for (const path of ['/x', '/assets/0/app.js', '/../etc/passwd', '/assets/../Cargo.toml', '/api/v1/x', '/dl/x']) {
    assert.ok([401, 404].includes((await get(path, {})).status), path)
  }
})

test('a session needs both of its halves, on every call', async () => {
  assert.equal((await get('/api/v1/accounts')).status, 200)
  const other = await server.signIn({ account: { name: ACCOUNT, key: KEY } })
  for (const headers of [{}, { cookie: session.cookie }, { 'x-lazuli-proof': session['x-lazuli-proof'] }, { cookie: session.cookie, 'x-lazuli-proof': other['x-lazuli-proof'] }]) {
    for (const path of ['/api/v1/accounts', '/api/v1/events?topics=trace', '/api/v1/conflicts', rest('/?comp=list')]) {
      assert.equal((await get(path, headers)).status, 401, path)
    }
  }
})

test('a host that could be rebound is refused', async () => {
  for (const host of ['evil.example', `127.0.0.1.evil.example:${server.port}`, `localhost.evil.example:${server.port}`]) {
    for (const path of ['/', '/api/v1/session', rest('/?comp=list'), '/dl/x']) {
      assert.equal((await get(path, { ...session, host })).status, 421, `${host} ${path}`)
    }
  }
})

test('a page of another port is refused, although the browser sends the cookie', async () => {
  for (const headers of [{ 'sec-fetch-site': 'same-site' }, { 'sec-fetch-site': 'cross-site' }, { origin: 'http://127.0.0.1:1' }, { origin: 'null' }]) {
    assert.equal((await get('/api/v1/accounts', { ...session, ...headers })).status, 403)
    assert.equal((await get(rest('/?comp=list'), { ...session, ...headers })).status, 403)
    assert.equal((await server.post('/api/v1/session', { development: true }, headers)).status, 403)
  }
  const own = await get('/api/v1/accounts', { ...session, origin: server.console, 'sec-fetch-site': 'same-origin' })
  assert.equal(own.status, 200)
  assert.equal(own.headers['access-control-allow-origin'], undefined)
  const form = await server.raw('POST', '/api/v1/session', { headers: { 'content-type': 'text/plain' }, body: '{"development":true}' })
  assert.equal(form.status, 400)
})

test('signing in makes a new session and ends the one that the browser had', async () => {
  const planted = await server.signIn({ development: true })
  const reply = await server.post('/api/v1/session', { development: true }, { cookie: planted.cookie })
  const cookie = reply.headers['set-cookie'][0]
  assert.match(cookie, /^lazuli_\d+=[\w-]{43}; Path=\/; HttpOnly; SameSite=Strict; Max-Age=604800$/)
  assert.notEqual(cookie.split(';')[0], planted.cookie)
  assert.equal((await get('/api/v1/accounts', planted)).status, 401)
})

test('a link works once, and only for an operator are there sessions and the audit log', async () => {
  const token = server.link().split('#t=')[1]
  const operator = await server.signIn({ link: token })
  assert.equal((await server.post('/api/v1/session', { link: token })).status, 401)
  assert.equal((await get('/api/v1/server/sessions')).status, 403)
  assert.equal((await get('/api/v1/audit')).status, 403)
  const { items, current } = (await get('/api/v1/server/sessions', operator)).json()
  assert.ok(items.some((it) => it.id === current && it.principal === 'operator'))
  const audit = await get('/api/v1/audit', operator)
  assert.ok(audit.json().items.some((it) => it.action === 'sign in with link' && it.outcome === 'refused'))
  assert.ok(!audit.text.includes(token) && !audit.text.includes(KEY))
  assert.equal((await server.raw('DELETE', `/api/v1/server/sessions/${current}`, { headers: { ...operator, 'content-type': 'application/json' } })).status, 200)
  assert.equal((await get('/api/v1/audit', operator)).status, 401)
})

test('a session outlives a restart, and a wrong key is refused and slowed down', async () => {
  await server.stop()
  await server.launch()
  // The port is in the name of the cookie.
  session.cookie = session.cookie.replace(/^lazuli_\d+/, `lazuli_${server.port}`)
  assert.equal((await get('/api/v1/accounts')).status, 200)
  const wrong = { account: { name: ACCOUNT, key: 'AAAA' } }
  const statuses = []
  for (let n = 0; n < 8; n++) statuses.push((await server.post('/api/v1/session', wrong)).status)
  assert.equal(statuses[0], 401)
  assert.ok(statuses.includes(429), statuses.join())
  await server.stop()
  await server.launch()
  session.cookie = session.cookie.replace(/^lazuli_\d+/, `lazuli_${server.port}`)
})

test('data is the storage protocol itself, with its conditions', async () => {
  assert.equal((await put(rest('/data?restype=container'))).status, 201)
  const created = await put(rest('/data/a.txt'), 'one', { 'x-ms-blob-type': 'BlockBlob' })
  assert.equal(created.status, 201)
  const stale = await put(rest('/data/a.txt'), 'two', { 'x-ms-blob-type': 'BlockBlob', 'if-match': '"0x1"' })
  assert.deepEqual([stale.status, stale.headers['x-ms-error-code']], [412, 'ConditionNotMet'])
  assert.ok(!stale.text.includes('127.0.0.1'), 'the client does not see the conflict')
  assert.equal((await server.blobs().getContainerClient('data').getBlobClient('a.txt').downloadToBuffer()).toString(), 'one')
  assert.equal((await get(`/storage/blob/otheraccount/data/a.txt`, { ...session, ...V })).status, 403)
  assert.equal((await get(rest('/data/../../x'), { ...session, ...V })).status >= 400, true)
})

test('content of clients is never a document of the console', async () => {
  for (const [name, type] of [['x.html', 'text/html'], ['x.svg', 'image/svg+xml'], ['x.pdf', 'application/pdf'], ['x.js', 'text/javascript']]) {
    await put(rest(`/data/${name}`), '<script>alert(1)</script>', { 'x-ms-blob-type': 'BlockBlob', 'x-ms-blob-content-type': type, 'x-ms-blob-content-disposition': 'inline' })
    const reply = await get(rest(`/data/${name}`), { ...session, ...V })
    assert.equal(reply.headers['content-security-policy'], "sandbox; default-src 'none'; frame-ancestors 'none'")
    assert.equal(reply.headers['content-disposition'], 'attachment')
    assert.equal(reply.headers['x-content-type-options'], 'nosniff')
  }
})

test('conflict names the winner, the condition and both versions', async () => {
  const winner = server.blobs('winner/1.0').getContainerClient('data').getBlockBlobClient('c.txt')
  const loser = server.blobs('loser/1.0').getContainerClient('data').getBlockBlobClient('c.txt')
  const first = await winner.upload('1', 1)
  const second = await winner.upload('2', 1)
  await assert.rejects(loser.upload('3', 1, { conditions: { ifMatch: first.etag } }), { statusCode: 412 })
  const row = await until(async () => (await get('/api/v1/conflicts')).json().items.find((it) => it.resource === '/data/c.txt'))
  assert.equal(row.code, 'ConditionNotMet')
  assert.match(row.client.agent, /^loser/)
  assert.match(row.other.client.agent, /^winner/)
  assert.equal(row.other.client.requestId, second.requestId)
  assert.deepEqual([row.why.condition, row.why.given, row.why.current], ['If-Match', first.etag, second.etag])
})

test('lease of an SDK is on the board, and its conflicts name the holder', async () => {
  const blob = server.blobs('holder/1.0').getContainerClient('data').getBlockBlobClient('l.txt')
  await blob.upload('1', 1)
  const lease = blob.getBlobLeaseClient()
  await lease.acquireLease(60)
  const board = (await get('/api/v1/leases')).json().items.find((it) => it.resource === '/data/l.txt')
  assert.equal(board.state, 'leased')
  assert.ok(!board.id.includes(lease.leaseId) && lease.leaseId.startsWith(board.id.slice(0, 8)), 'the id is masked')
  await assert.rejects(server.blobs('intruder/1.0').getContainerClient('data').getBlockBlobClient('l.txt').upload('2', 1), { statusCode: 412 })
  const row = (await get('/api/v1/conflicts')).json().items.find((it) => it.code === 'LeaseIdMissing')
  assert.match(row.other.client.agent, /^holder/)
  assert.equal(row.why.lease.state, 'leased')
  assert.ok(Date.parse(row.why.lease.until) > Date.now())
  await lease.releaseLease()
  assert.ok(!(await get('/api/v1/leases')).json().items.some((it) => it.resource === '/data/l.txt'))
})

test('late consumer learns which client has the message', async () => {
  const queue = server.queues().getQueueClient('late')
  await queue.create()
  await queue.sendMessage('work')
  const [held] = (await queue.receiveMessages({ visibilityTimeout: 1 })).receivedMessageItems
  const again = await until(async () => (await queue.receiveMessages({ visibilityTimeout: 300 })).receivedMessageItems[0])
  assert.equal(again.messageId, held.messageId)
  await assert.rejects(queue.deleteMessage(held.messageId, held.popReceipt), { statusCode: 404 })
  const row = (await get('/api/v1/conflicts')).json().items.find((it) => it.code === 'MessageNotFound')
  assert.equal(row.other.dequeueCount, 2)
  const { items } = (await get(`/api/v1/queues/${ACCOUNT}/late/messages?state=invisible`)).json()
  assert.deepEqual([items.length, items[0].dequeueCount], [1, 2])
})

test('stream sends live events of its topics, and secrets are not among them', async () => {
  const { status, headers, reply } = await server.raw('GET', '/api/v1/events?topics=trace,conflicts', { headers: session, stream: true })
  assert.deepEqual([status, headers['content-type'], headers['x-accel-buffering']], [200, 'text/event-stream', 'no'])
  let text = ''
  reply.on('data', (data) => (text += data))
  assert.ok(await until(async () => {
    await server.blobs('traced/1.0').getContainerClient('data').getBlobClient('a.txt').getProperties()
    return text.includes('traced/1.0')
  }))
  assert.ok(!/SharedKey|[?&]sig=[^…]/.test(text))
  reply.destroy()
})

test('thirty-third stream is refused, and a closed one makes room', async () => {
  const opened = []
  let refused
  for (let n = 0; n < 40 && !refused; n++) {
    const stream = await server.raw('GET', '/api/v1/events?topics=metrics', { headers: session, stream: true })
    if (stream.status === 503) refused = stream
    else opened.push(stream)
  }
  assert.ok(refused && opened.length <= 32, `${opened.length} streams`)
  refused.reply.destroy()
  assert.equal((await get('/healthz', {})).status, 200, 'probes are not affected')
  opened.forEach((stream) => stream.reply.destroy())
  assert.ok(await until(async () => {
    const stream = await server.raw('GET', '/api/v1/events?topics=metrics', { headers: session, stream: true })
    stream.reply.destroy()
    return stream.status === 200
  }))
})

test('download needs its ticket and the cookie of its session', async () => {
  const post = (path) => server.post('/api/v1/tickets', { path, name: 'a "b".txt' }, session)
  const { url } = (await post(`blob/${ACCOUNT}/data/a.txt`)).json()
  const cookie = { cookie: session.cookie }
  const reply = await get(`/${url}`, cookie)
  assert.deepEqual([reply.status, reply.text], [200, 'one'])
  assert.match(reply.headers['content-disposition'], /^attachment; filename\*=UTF-8''a%20%22b%22%2Etxt$/)
  const part = await get(`/${url}`, { ...cookie, range: 'bytes=1-1' })
  assert.deepEqual([part.status, part.text], [206, 'n'])
  assert.equal((await get(`/${url}`, {})).status, 404)
  const other = await server.signIn({ development: true })
  assert.equal((await get(`/${url}`, { cookie: other.cookie })).status, 404)
  assert.equal((await get('/dl/AAAA', cookie)).status, 404)
  assert.equal((await server.raw('PUT', `/${url}`, { headers: cookie })).status, 405)
  assert.equal((await post('blob/otheraccount/data/a.txt')).status, 403)
})

test('signature works, and the key stays on the server', async () => {
  const reply = await server.post('/api/v1/sas', { account: ACCOUNT, service: 'blob', container: 'data', object: 'a.txt', permissions: 'r', hours: 1 }, session)
  assert.equal(reply.status, 200, reply.text)
  assert.ok(!reply.text.includes(KEY))
  const url = new URL(reply.json().url)
  const read = await fetch(url)
  assert.deepEqual([read.status, await read.text()], [200, 'one'])
  assert.equal((await server.post('/api/v1/sas', { account: 'other', service: 'blob', permissions: 'r', hours: 1 }, session)).status, 403)
})

test('signing out ends the session', async () => {
  const own = await server.signIn({ development: true })
  const reply = await server.raw('DELETE', '/api/v1/session', { headers: { ...own, 'content-type': 'application/json' } })
  assert.equal(reply.status, 200)
  assert.match(reply.headers['set-cookie'][0], /Max-Age=0/)
  assert.equal((await get('/api/v1/accounts', own)).status, 401)
})
