// The one stream of live events of this tab. Screens listen to topics; the stream has the topics of all
// listeners, ends while the tab is hidden, and comes back by itself after a failure.

import { signal } from './view.js'
import { call } from './api.js'

/** `live`, `paused`, or `waiting` with the time of the loss. */
export const state = signal({ name: 'paused', since: 0 })

const listeners = new Map()
let controller = null
let last = null
let retry = 0
let timer = 0

export function listen(topic, receive) {
  if (!listeners.has(topic)) listeners.set(topic, new Set())
  const isNew = listeners.get(topic).size === 0
  listeners.get(topic).add(receive)
  if (isNew) restart()
  return () => {
    listeners.get(topic).delete(receive)
    if (listeners.get(topic).size === 0) listeners.delete(topic)
    if (listeners.size === 0) stop()
  }
}

export function stop() {
  clearTimeout(timer)
  controller?.abort()
  controller = null
  state.set({ name: 'paused', since: 0 })
}

function restart() {
  clearTimeout(timer)
  timer = setTimeout(open, 20)
}

async function open() {
  controller?.abort()
  if (document.hidden || listeners.size === 0) return stop()
  const own = (controller = new AbortController())
  const headers = last === null ? {} : { 'last-event-id': String(last) }
  try {
    const reply = await call('GET', `events?topics=${[...listeners.keys()].join(',')}`, undefined, { signal: own.signal, headers, raw: true })
    state.set({ name: 'live', since: Date.now() })
    retry = 0
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader()
    let rest = ''
    for (;;) {
      const { done, value } = await reader.read()
      if (done) break
      const events = (rest + value).split('\n\n')
      rest = events.pop()
      events.forEach(dispatch)
    }
    throw new Error('the stream ended')
  } catch (problem) {
    if (own.signal.aborted || problem.status === 401) return
    if (state.peek().name !== 'waiting') state.set({ name: 'waiting', since: Date.now() })
    retry = Math.min(retry + 1, 5)
    timer = setTimeout(open, 500 * 2 ** retry)
  }
}

function dispatch(text) {
  const fields = {}
  for (const line of text.split('\n')) {
    const at = line.indexOf(': ')
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2)
  }
  if (!fields.data) return
  if (fields.id) last = Number(fields.id)
  const event = JSON.parse(fields.data)
  for (const receive of listeners.get(fields.event) ?? []) receive(event)
}

document.addEventListener('visibilitychange', () => (document.hidden ? stop() : listeners.size && restart()))
