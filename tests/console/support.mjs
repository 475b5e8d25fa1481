// Starts a real server, and offers raw requests to its console, SDK clients, and a browser.

import { spawn, execFileSync } from 'node:child_process'
import { createRequire } from 'node:module'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import http from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const modules = process.env.CONSOLE_MODULES ?? new URL('../../target/console/node_modules', import.meta.url).pathname
const require = createRequire(join(modules, 'any.js'))
const LAZULI = process.env.LAZULI ?? new URL('../../target/debug/lazuli', import.meta.url).pathname
export const KEY = 'Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=='
export const ACCOUNT = 'devstoreaccount1'
export const axeSource = () => require.resolve('axe-core/axe.min.js')

/** Machines may be slow, and a test waits no longer than this. */
export const PATIENCE = 60_000

export class Server {
  static async start(...options) {
    const server = new Server()
    server.data = mkdtempSync(join(tmpdir(), 'lazuli-console-'))
    server.options = options
    await server.launch()
    return server
  }

  async launch() {
    const ports = ['blob', 'queue', 'table', 'file', 'smb', 'console'].flatMap((name) => [`--${name}-port`, '0'])
    this.process = spawn(LAZULI, ['serve', '--data', this.data, '--log-level', 'warn,audit=off', ...ports, ...this.options])
    let output = ''
    this.log = ''
    this.process.stderr.on('data', (data) => (this.log += data))
    await new Promise((resolve, reject) => {
      this.process.on('exit', (code) => reject(new Error(`the server ended with ${code}: ${output} ${this.log}`)))
      this.process.stdout.on('data', (data) => {
        output += data
        if (output.includes('connect')) resolve()
      })
    })
    const address = (name) => new RegExp(`^ +${name} +(https?://[^/\\s]+)`, 'm').exec(output)?.[1]
    this.console = address('console')
    this.blob = address('blob')
    this.queue = address('queue')
    this.tables = address('table')
    this.port = Number(new URL(this.console).port)
    this.ready = output
  }

  async stop() {
    this.process.removeAllListeners('exit')
    const ended = new Promise((resolve) => this.process.once('exit', resolve))
    this.process.kill('SIGKILL')
    await ended
  }

  async end() {
    await this.stop()
    rmSync(this.data, { recursive: true, force: true })
  }

  /** Returns a link that signs an operator in. */
  link() {
    return execFileSync(LAZULI, ['console', '--data', this.data], { encoding: 'utf8' }).trim()
  }

  /** Sends a request exactly as given. */
  raw(method, path, { headers = {}, body, stream } = {}) {
    return new Promise((resolve, reject) => {
      const request = http.request({ host: '127.0.0.1', port: this.port, method, path, headers, agent: false }, (reply) => {
        if (stream) return resolve({ status: reply.statusCode, headers: reply.headers, reply })
        const parts = []
        reply.on('data', (part) => parts.push(part))
        reply.on('end', () => {
          const text = Buffer.concat(parts).toString()
          resolve({ status: reply.statusCode, headers: reply.headers, text, json: () => JSON.parse(text) })
        })
      })
      request.on('error', reject)
      request.end(body)
    })
  }

  post(path, value, headers = {}) {
    return this.raw('POST', path, { headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(value) })
  }

  /** Signs in and returns the headers of a session. */
  async signIn(how) {
    const reply = await this.post('/api/v1/session', how)
    if (reply.status !== 200) throw new Error(`${reply.status} ${reply.text}`)
    return { cookie: reply.headers['set-cookie'][0].split(';')[0], 'x-lazuli-proof': reply.json().proof }
  }

  blobs(name = 'app') {
    const { BlobServiceClient, StorageSharedKeyCredential } = require('@azure/storage-blob')
    const options = { userAgentOptions: { userAgentPrefix: name }, retryOptions: { maxTries: 1 } }
    return new BlobServiceClient(`${this.blob}/${ACCOUNT}`, new StorageSharedKeyCredential(ACCOUNT, KEY), options)
  }

  table(name) {
    const { AzureNamedKeyCredential, TableClient } = require('@azure/data-tables')
    return new TableClient(`${this.tables}/${ACCOUNT}`, name, new AzureNamedKeyCredential(ACCOUNT, KEY), { allowInsecureConnection: true, retryOptions: { maxRetries: 0 } })
  }

  queues() {
    const { QueueServiceClient, StorageSharedKeyCredential } = require('@azure/storage-queue')
    return new QueueServiceClient(`${this.queue}/${ACCOUNT}`, new StorageSharedKeyCredential(ACCOUNT, KEY), { retryOptions: { maxTries: 1 } })
  }
}

/** Starts Debian's Chromium. */
export async function browser() {
  const { chromium } = require('playwright-core')
  const executablePath = ['/usr/bin/chromium-headless-shell', '/usr/bin/chromium'].find((path) => existsSync(path))
  const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync']
  return chromium.launch({ executablePath, args, headless: true })
}

/** Opens a page that remembers what must not happen: errors, and violations of its policy. */
export async function open(context, url) {
  const page = await context.newPage()
  page.setDefaultTimeout(PATIENCE)
  page.troubles = []
  page.on('pageerror', (error) => page.troubles.push(`error: ${error.message}`))
  page.on('console', (message) => {
    const text = message.text()
    const isExpected = /Failed to load resource: the server responded with a status of (401|404|409|412)/.test(text)
    if (message.type() === 'error' && !isExpected) page.troubles.push(`console: ${text}`)
  })
  await page.addInitScript(() => {
    window.violations = []
    document.addEventListener('securitypolicyviolation', (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`))
  })
  await page.goto(url)
  return page
}

/** Returns what went wrong on a page. */
export async function troubles(page) {
  return [...page.troubles, ...(await page.evaluate(() => window.violations))]
}

/** Returns the violations that axe finds. */
export async function axe(page) {
  const source = await import('node:fs').then((fs) => fs.readFileSync(axeSource(), 'utf8'))
  // The page's policy forbids scripts of others, so the driver evaluates the script instead.
  await page.evaluate(source)
  // A fade changes contrast while it runs.
  await page.evaluate(() => Promise.all(document.getAnimations().map((it) => it.finished.catch(() => {}))))
  const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }))
  return violations.map((it) => `${it.id}: ${it.nodes.slice(0, 3).map((node) => `${node.target} ${node.html.slice(0, 120)} ${node.any.map((any) => any.message).join(' ')}`).join(' | ')}`)
}

export const until = async (check) => {
  const deadline = Date.now() + PATIENCE
  for (;;) {
    const found = await check()
    if (found || Date.now() > deadline) return found
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}
