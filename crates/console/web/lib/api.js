// Calls of the console's API and of the storage protocol behind `/storage`. Each call carries the proof,
// which is the half of the session that only this page knows. A 401 signs the page out.

import { signal } from './view.js'

const PROOF = 'lazuli.proof'
export const VERSION = '2025-11-05'
/** The principal and the facts of the server; `null` while signed out, `undefined` until known. */
export const session = signal(undefined)

export class Problem extends Error {
  constructor(status, code, message, requestId) {
    super(message)
    Object.assign(this, { status, code, requestId })
  }
}

export const base = new URL('./', document.baseURI)

function headers(more = {}) {
  const proof = localStorage.getItem(PROOF)
  return proof ? { 'x-lazuli-proof': proof, ...more } : more
}

export async function call(method, path, body, options = {}) {
  const json = body === undefined && method === 'GET' ? {} : { 'content-type': 'application/json' }
  const reply = await fetch(new URL(`api/v1/${path}`, base), {
    method,
    headers: headers({ ...json, ...options.headers }),
    body: method === 'GET' ? undefined : JSON.stringify(body ?? {}),
    signal: options.signal,
    cache: 'no-store',
  })
  if (options.raw && reply.ok) return reply
  const answer = await reply.json().catch(() => ({}))
  if (!reply.ok) {
    if (reply.status === 401 && session.peek()?.principal) signedOut()
    throw new Problem(reply.status, answer.code ?? reply.status, answer.message ?? reply.statusText, answer.requestId)
  }
  return answer
}

function signedOut() {
  localStorage.removeItem(PROOF)
  session.set({ principal: null })
}

export async function refresh() {
  session.set(await call('GET', 'session'))
}

export async function signIn(how) {
  const answer = await call('POST', 'session', how)
  localStorage.setItem(PROOF, answer.proof)
  await refresh()
}

export async function signOut() {
  await call('DELETE', 'session').catch(() => {})
  signedOut()
  await refresh()
}

/** Encodes the names of a path. */
export const encode = (path) => path.split('/').map(encodeURIComponent).join('/')

/** Sends a request of the storage protocol. `path` is encoded and begins after the account. */
export async function storage(method, service, account, path, options = {}) {
  const url = new URL(`storage/${service}/${account}${path}`, base)
  const reply = await fetch(url, {
    method,
    headers: headers({ 'x-ms-version': VERSION, ...options.headers }),
    body: options.body,
    signal: options.signal,
    cache: 'no-store',
  })
  if (!reply.ok && !options.any) throw await problemOf(reply)
  return reply
}

export async function problemOf(reply) {
  const text = await reply.text().catch(() => '')
  const requestId = reply.headers.get('x-ms-request-id')
  let [code, message] = [reply.headers.get('x-ms-error-code'), '']
  try {
    const json = JSON.parse(text)
    code ??= json.code ?? json['odata.error']?.code
    message = json.message ?? json['odata.error']?.message?.value ?? ''
  } catch {
    message = /<Message>([^<]*)/.exec(text)?.[1] ?? ''
  }
  if (reply.status === 401 && code === 'SignedOut') signedOut()
  return new Problem(reply.status, code ?? String(reply.status), message.split('\nRequestId')[0] || reply.statusText, requestId)
}

/** Sends a body with progress, which `fetch` does not report. */
export function upload(service, account, path, { headers: more, body, onprogress, signal }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest()
    request.open('PUT', new URL(`storage/${service}/${account}${path}`, base))
    for (const [name, value] of Object.entries(headers({ 'x-ms-version': VERSION, ...more }))) request.setRequestHeader(name, value)
    request.upload.onprogress = (event) => onprogress?.(event.loaded)
    request.onload = async () => {
      if (request.status < 300) return resolve(request)
      const code = request.getResponseHeader('x-ms-error-code') ?? String(request.status)
      const message = /<Message>([^<]*)/.exec(request.responseText)?.[1]?.split('\nRequestId')[0] ?? request.statusText
      reject(new Problem(request.status, code, message, request.getResponseHeader('x-ms-request-id')))
    }
    request.onerror = () => reject(new Problem(0, 'Unreachable', 'The server does not answer.'))
    request.onabort = () => reject(new DOMException('canceled', 'AbortError'))
    signal?.addEventListener('abort', () => request.abort())
    request.send(body)
  })
}

/** Lets the browser download an object itself. */
export async function download(service, account, path, name) {
  const ticket = await call('POST', 'tickets', { path: `${service}/${account}${path}`, name })
  const link = document.createElement('a')
  link.href = new URL(ticket.url, base)
  link.rel = 'noopener'
  document.body.append(link)
  link.click()
  link.remove()
}
