// Numbers, sizes and times as people read them, and names made safe to look at.

import { language } from './i18n.js'

const cache = new Map()
const format = (options) => {
  const key = language() + JSON.stringify(options)
  if (!cache.has(key)) cache.set(key, new Intl.NumberFormat(language(), options))
  return cache.get(key)
}

export const number = (value) => (value == null ? '–' : format({ maximumFractionDigits: value < 10 ? 1 : 0 }).format(value))
export const whole = (value) => format({ maximumFractionDigits: 0 }).format(value)

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']
export function bytes(value) {
  if (value == null) return '–'
  let unit = 0
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024
    unit++
  }
  return `${format({ maximumFractionDigits: unit && value < 10 ? 1 : 0 }).format(value)} ${UNITS[unit]}`
}

/** A time of one request, in seconds. */
export function seconds(value) {
  if (value == null) return '–'
  if (value < 1) return `${format({ maximumSignificantDigits: 3 }).format(value * 1000)} ms`
  return `${format({ maximumSignificantDigits: 3 }).format(value)} s`
}

export const micros = (value) => (value == null ? '–' : seconds(value / 1e6))

const two = (value) => String(value).padStart(2, '0')

/** A span in seconds, as a clock would show it. */
export function span(value) {
  const total = Math.max(0, Math.ceil(value))
  if (total < 60) return `${total} s`
  if (total < 3600) return `${Math.floor(total / 60)}:${two(total % 60)}`
  return `${Math.floor(total / 3600)}:${two(Math.floor((total % 3600) / 60))}:${two(total % 60)}`
}

export function clock(value) {
  return new Intl.DateTimeFormat(language(), { hour: '2-digit', minute: '2-digit', second: '2-digit' }).format(new Date(value))
}

export function moment(value) {
  const date = new Date(value)
  if (Number.isNaN(date.getTime())) return '–'
  return new Intl.DateTimeFormat(language(), { dateStyle: 'medium', timeStyle: 'medium' }).format(date)
}

export function ago(value, now) {
  const past = (now - Date.parse(value)) / 1000
  const relative = new Intl.RelativeTimeFormat(language(), { numeric: 'auto', style: 'narrow' })
  if (past < 60) return relative.format(-Math.max(0, Math.round(past)), 'second')
  if (past < 3600) return relative.format(-Math.round(past / 60), 'minute')
  if (past < 86400) return relative.format(-Math.round(past / 3600), 'hour')
  return relative.format(-Math.round(past / 86400), 'day')
}

/** Shows control and bidirectional characters of a name as visible marks. */
export function name(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (char) => {
    return `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`
  })
}

/** The program in a user agent: an application names itself before its SDK. */
export function agent(text) {
  if (!text) return ''
  if (/^Mozilla\//.test(text)) return /(Edg|Firefox|Chrome|Safari)\/\d+/.exec(text)?.[0] ?? 'browser'
  return text.split(' ')[0]
}
