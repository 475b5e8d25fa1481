// Overview: figures of the last minute, charts of a window, the services, and space.

import { computed, each, h, onEnd, signal } from '../lib/view.js'
import { t } from '../lib/i18n.js'
import { call, session } from '../lib/api.js'
import { listen } from '../lib/stream.js'
import { link } from '../lib/route.js'
import { bytes, moment, number, seconds } from '../lib/format.js'
import { badge, button, fail, setServerTime } from '../ui/parts.js'
import { chart, sparkline } from '../ui/chart.js'

const SERVICES = ['blob', 'queue', 'table', 'file']
const WINDOWS = { '15m': 15 * 60e3, '6h': 6 * 3600e3, '7d': 7 * 86400e3 }
const STEPS = { '15m': 5500, '6h': 31e3, '7d': 601e3 }
const sum = (point, field) => SERVICES.reduce((total, name) => total + (point.services[name]?.[field] ?? 0), 0)

export function overviewScreen() {
  const points = signal([])
  const shown = signal('15m')
  const other = signal([])
  const about = signal({})
  const load = async () => {
    const [facts, series] = await Promise.all([call('GET', 'overview'), call('GET', 'series?window=15m')])
    setServerTime(facts.asOf)
    about.set(facts)
    points.set(series.items)
  }
  load().catch(fail)
  const timer = setInterval(() => document.hidden || call('GET', 'overview').then((facts) => { setServerTime(facts.asOf); about.set(facts) }, () => {}), 15000)
  onEnd(() => clearInterval(timer))
  onEnd(listen('metrics', ({ point }) => points.update((list) => [...list.slice(-899), point])))
  const choose = async (name) => {
    shown.set(name)
    if (name !== '15m') other.set((await call('GET', `series?window=${name}`)).items)
  }
  const last = computed(() => points()[points().length - 1])
  const minute = computed(() => points().filter((point) => point.at > (last()?.at ?? 0) - 60e3))
  const drawn = computed(() => (shown() === '15m' ? points() : other()))

  const tile = (key, value, format, color = 'c0', href) => {
    const body = [h('span', { class: 'tile-name' }, () => t(`tile.${key}`)), h('b', { class: 'tile-value' }, () => (last() ? format(value(last())) : '–')), sparkline(() => minute().map(value), color)]
    return href ? h('a', { class: `tile ${color}`, href }, body) : h('div', { class: `tile ${color}` }, body)
  }
  const series = (fields) => fields.map(([key, color]) => ({ name: () => t(key), color }))
  const plot = (key, fields, values, format) => () => chart({
    title: () => t(key), series: series(fields), format, window: WINDOWS[shown()], step: STEPS[shown()],
    points: () => drawn().map((point) => ({ at: point.at, values: values(point) })),
  })
  const perSecond = (value) => (value == null ? '–' : `${number(value)}/s`)
  const bytesPerSecond = (value) => (value == null ? '–' : `${bytes(value)}/s`)
  const slowest = (point, field) => SERVICES.reduce((most, name) => {
    const value = point.services[name]?.[field]
    return value == null ? most : Math.max(most ?? 0, value)
  }, null)
  const disk = computed(() => last()?.disk ?? {})
  const free = computed(() => disk().free)
  const total = computed(() => disk().total)
  const state = () => about().readiness?.split(':')[0]?.split(' ')[0]

  return h('div', { class: 'screen' },
    h('div', { class: 'screen-head' }, h('div', {}, h('h1', {}, t('nav.overview')), h('p', { class: 'lead' }, () => (about().started ? t('overview.since', { time: moment(about().started) }) : ' '))),
      () => session()?.principal?.role === 'operator' && about().readiness && badge(about().readiness, state() === 'ready' ? 'good' : 'warn')),
    h('div', { class: 'tiles' },
      tile('requests', (point) => sum(point, 'requests'), number, 'c0', link(['trace'])),
      tile('conflicts', (point) => point.conflicts, number, 'c1', link(['concurrency'])),
      tile('refused', (point) => sum(point, 'refused'), number, 'c3', link(['trace'], { errors: '1' })),
      tile('failed', (point) => sum(point, 'failed'), number, 'c4', link(['trace'], { errors: '1' })),
      tile('in', (point) => sum(point, 'bytesIn'), bytes, 'c2'),
      tile('out', (point) => sum(point, 'bytesOut'), bytes, 'c2'),
      tile('connections', (point) => sum(point, 'connections'), number, 'c0'),
      tile('handles', (point) => point.openHandles, number, 'c0', link(['concurrency']))),
    h('section', { class: 'card' },
      h('div', { class: 'card-head' }, h('h2', {}, t('overview.time')), h('div', { class: 'segments', role: 'group', 'aria-label': t('overview.window') },
        Object.keys(WINDOWS).map((name) => h('button', { type: 'button', 'aria-pressed': () => String(shown() === name), onclick: () => choose(name).catch(fail) }, t(`window.${name}`))))),
      h('div', { class: 'charts' },
        plot('chart.requests', SERVICES.map((name, i) => [`service.${name}`, `c${i}`]), (point) => SERVICES.map((name) => point.services[name]?.requests ?? 0), perSecond),
        plot('chart.times', [['chart.p50', 'c2'], ['chart.p99', 'c1']], (point) => [slowest(point, 'p50'), slowest(point, 'p99')], (value) => (value == null ? '–' : `≤ ${seconds(value)}`)),
        plot('chart.conflicts', [['tile.conflicts', 'c1'], ['chart.retries', 'c3']], (point) => [point.conflicts, point.retries], perSecond),
        plot('chart.bytes', [['tile.in', 'c0'], ['tile.out', 'c2']], (point) => [sum(point, 'bytesIn'), sum(point, 'bytesOut')], bytesPerSecond))),
    h('div', { class: 'columns' },
      h('section', { class: 'card' }, h('h2', {}, t('overview.services')), h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('overview.services') }, h('table', {},
        h('thead', {}, h('tr', {}, ['service', 'requests', 'refused', 'p50', 'p99', 'flight'].map((key, i) => h('th', { scope: 'col', class: i ? 'num' : '' }, t(`col.${key}`))))),
        h('tbody', {}, each(() => SERVICES, (name) => name, (name) => {
          const at = () => last()?.services[name()]
          const cell = (text) => h('td', { class: 'num' }, text)
          return h('tr', {}, h('th', { scope: 'row' }, t(`service.${name()}`)), cell(() => perSecond(at()?.requests)), cell(() => perSecond(at()?.refused)),
            cell(() => (at()?.p50 == null ? '–' : `≤ ${seconds(at().p50)}`)), cell(() => (at()?.p99 == null ? '–' : `≤ ${seconds(at().p99)}`)), cell(() => number(at()?.inFlight)))
        }))))),
      h('section', { class: 'card' }, h('h2', {}, t('overview.space')),
        () => (free() == null || !total() ? h('p', { class: 'hint' }, t('overview.space.none')) : [
          h('meter', { min: 0, max: total(), low: total() * 0.9, high: total() * 0.95, optimum: 0, value: total() - free(), 'aria-label': t('overview.space') }),
          h('p', {}, t('overview.free', { free: bytes(free()), total: bytes(total()) })),
          free() < total() * 0.1 && h('p', { class: 'problem' }, t(free() < total() * 0.05 ? 'overview.alarm' : 'overview.warn'))]),
        h('dl', { class: 'facts' }, () => [...Object.entries(disk()).filter(([key]) => !['free', 'total'].includes(key)).map(([key, value]) => [t(`disk.${key}`), bytes(value)]), [t('overview.memory'), bytes(last()?.memory)]]
          .map(([key, value]) => h('div', {}, h('dt', {}, key), h('dd', {}, value)))))))
}
