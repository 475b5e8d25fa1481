// Routes in the fragment: `#/blobs/account/container?prefix=a`. A route is the link to what it shows.

import { signal } from './view.js'

function read() {
  const text = location.hash.replace(/^#\/?/, '')
  const [path, query] = text.split('?')
  return { segments: path.split('/').filter(Boolean).map(decode), query: new URLSearchParams(query ?? '') }
}

function decode(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

export const route = signal(read())
addEventListener('hashchange', () => route.set(read()))

export function link(segments, query = {}) {
  const pairs = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== ''))
  const text = `#/${segments.map(encodeURIComponent).join('/')}`
  return pairs.size ? `${text}?${pairs}` : text
}

export const go = (segments, query) => (location.hash = link(segments, query))
