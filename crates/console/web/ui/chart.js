// Line and area charts in SVG: axes, gaps where there are no points, a readout by pointer and keyboard, and a
// table for screen readers. `chart({ title, series, points, format, window })`: `points()` returns
// `[{ at, values: [n, …] }]` in order, `series` is `[{ name, color }]`, and `window` is in milliseconds.

import { effect, h, signal } from '../lib/view.js'
import { clock } from '../lib/format.js'
import { t } from '../lib/i18n.js'

const WIDTH = 600
const HEIGHT = 150
const EDGE = { left: 4, right: 4, top: 8, bottom: 18 }

export function chart({ title, series, points, format, window: length, step = 1500 }) {
  const chosen = signal(null)
  const lines = series.map((one) => h('path', { class: `line ${one.color}`, fill: 'none' }))
  const areas = series.map((one) => h('path', { class: `area ${one.color}` }))
  const cursor = h('line', { class: 'cursor', y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: 'hidden' })
  const grid = h('g', { class: 'grid' })
  const top = signal(1)
  let shown = []
  let from = 0

  const x = (at) => EDGE.left + ((at - from) / length) * (WIDTH - EDGE.left - EDGE.right)
  const y = (value) => HEIGHT - EDGE.bottom - (value / top.peek()) * (HEIGHT - EDGE.top - EDGE.bottom)

  const draw = () => {
    const all = points()
    const end = all.length ? all[all.length - 1].at : Date.now()
    from = end - length
    shown = all.filter((point) => point.at >= from)
    let highest = 0
    for (const point of shown) for (const value of point.values) if (value > highest) highest = value
    top.set(nice(highest))
    series.forEach((_, index) => {
      let line = ''
      let area = ''
      let start = null
      let before = null
      for (const point of shown) {
        const value = point.values[index]
        const gap = before !== null && point.at - before.at > step * 4
        if (value == null || gap) {
          if (start !== null) area += `L${x(before.at).toFixed(1)} ${y(0)}L${start} ${y(0)}Z`
          start = null
        }
        if (value != null) {
          const [px, py] = [x(point.at).toFixed(1), y(value).toFixed(1)]
          line += `${start === null ? 'M' : 'L'}${px} ${py}`
          area += start === null ? `M${px} ${py}` : `L${px} ${py}`
          if (start === null) start = px
          before = point
        }
      }
      if (start !== null && before) area += `L${x(before.at).toFixed(1)} ${y(0)}L${start} ${y(0)}Z`
      lines[index].setAttribute('d', line)
      areas[index].setAttribute('d', area)
    })
    const marks = [0, 0.5, 1].map((share) => h('line', { x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(top.peek() * share), y2: y(top.peek() * share) }))
    grid.replaceChildren(...marks)
    if (chosen.peek() !== null) choose(Math.min(chosen.peek(), shown.length - 1))
  }

  const choose = (index) => {
    const point = shown[index]
    chosen.set(point ? index : null)
    cursor.setAttribute('visibility', point ? 'visible' : 'hidden')
    if (point) {
      cursor.setAttribute('x1', x(point.at))
      cursor.setAttribute('x2', x(point.at))
    }
    readout.set(point ? point : null)
  }
  const readout = signal(null)

  const svg = h('svg', {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', tabindex: '0', role: 'img',
    'aria-label': () => `${title()}. ${series.map((one, i) => `${one.name()}: ${format(latest(points(), i))}`).join(', ')}`,
    onpointermove: (event) => {
      const box = svg.getBoundingClientRect()
      const at = from + ((event.clientX - box.left) / box.width) * length
      let best = 0
      shown.forEach((point, index) => { if (Math.abs(point.at - at) < Math.abs(shown[best].at - at)) best = index })
      choose(best)
    },
    onpointerleave: () => choose(-1),
    onblur: () => choose(-1),
    onkeydown: (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1 }
      if (!(event.key in steps)) return
      event.preventDefault()
      const now = chosen.peek() ?? shown.length - (steps[event.key] === 1 ? 1 : 0)
      choose(Math.max(0, Math.min(shown.length - 1, now + steps[event.key])))
    },
  }, grid, areas, lines, cursor)
  effect(draw)

  const legend = h('div', { class: 'legend' }, series.map((one, index) => h('span', { class: 'key' },
    h('span', { class: `swatch ${one.color}`, 'aria-hidden': 'true' }),
    h('span', {}, () => one.name()),
    h('b', {}, () => format(readout() ? readout().values[index] : latest(points(), index))))))
  return h('figure', { class: 'chart' },
    h('figcaption', {}, h('span', { class: 'chart-title' }, title), legend),
    h('div', { class: 'plot' }, h('span', { class: 'top-label', 'aria-hidden': 'true' }, () => format(top())), svg,
      h('span', { class: 'time-label', 'aria-hidden': 'true' }, () => (readout() ? clock(readout().at) : t('chart.last', { minutes: Math.round(length / 60000) })))),
    h('details', { class: 'as-table' }, h('summary', {}, () => t('chart.table')), h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': () => title() }, h('table', {},
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, () => t('chart.time')), series.map((one) => h('th', { scope: 'col' }, one.name)))),
      h('tbody', {}, () => points().slice(-10).reverse().map((point) => h('tr', {}, h('td', {}, clock(point.at)), point.values.map((value) => h('td', {}, format(value))))))))))
}

const latest = (points, index) => (points.length ? points[points.length - 1].values[index] : null)

function nice(value) {
  if (value <= 0) return 1
  const power = 10 ** Math.floor(Math.log10(value))
  return [1, 2, 5, 10].map((factor) => factor * power).find((bound) => bound >= value)
}

/** A line without axes. */
export function sparkline(values, color = 'c0') {
  const path = h('path', { class: `line ${color}`, fill: 'none' })
  const area = h('path', { class: `area ${color}` })
  effect(() => {
    const list = values()
    const highest = Math.max(1e-9, ...list)
    const at = (value, index) => `${((index / Math.max(1, list.length - 1)) * 100).toFixed(1)} ${(28 - (value / highest) * 25).toFixed(1)}`
    const line = list.length > 1 ? `M${list.map(at).join('L')}` : ''
    path.setAttribute('d', line)
    area.setAttribute('d', line && `${line}L100 30L0 30Z`)
  })
  return h('svg', { class: 'spark', viewBox: '0 0 100 30', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, area, path)
}
