// Values that notify, and DOM nodes that follow them.
//
// `signal(x)` holds a value: call it to read, `.set(y)` to change. `effect(f)` runs `f` now and whenever
// a signal that it has read changes; `computed(f)` is a signal that an effect feeds. `h(tag, props,
// ...children)` builds a node once. A function among its properties or children is an effect: only what
// it feeds changes. `each(items, key, render)` keeps the nodes of a list by key. Text is always set as
// text; there is no way to set HTML. `scope(f)` collects the effects that `f` starts, so that they end
// together.

let running = null
let owner = null

/** @template T @param {T} value */
export function signal(value) {
  const readers = new Set()
  const read = () => {
    if (running) {
      readers.add(running)
      running.sources.add(readers)
    }
    return value
  }
  read.peek = () => value
  read.set = (next) => {
    if (Object.is(next, value)) return
    value = next
    for (const reader of [...readers]) reader.run()
  }
  read.update = (change) => read.set(change(value))
  return read
}

/** Runs `work` now and after each change of a signal that it reads. Returns a function that ends it. */
export function effect(work) {
  const self = {
    sources: new Set(),
    children: [],
    ended: false,
    run() {
      if (self.ended) return
      clear(self)
      const before = [running, owner]
      running = self
      owner = self.children
      try {
        work()
      } finally {
        ;[running, owner] = before
      }
    },
  }
  const end = () => {
    self.ended = true
    clear(self)
  }
  owner?.push(end)
  self.run()
  return end
}

function clear(self) {
  for (const readers of self.sources) readers.delete(self)
  self.sources.clear()
  for (const end of self.children.splice(0)) end()
}

export function computed(work) {
  const result = signal(undefined)
  effect(() => result.set(work()))
  return result
}

/** Runs `work` without making its caller depend on the signals that it reads. */
export function untracked(work) {
  const before = running
  running = null
  try {
    return work()
  } finally {
    running = before
  }
}

/** Runs `work` and returns its result with a function that ends the effects that it started. */
export function scope(work) {
  const ends = []
  const before = [running, owner]
  running = null
  owner = ends
  try {
    return [work(), () => ends.splice(0).forEach((end) => end())]
  } finally {
    ;[running, owner] = before
  }
}

/** Calls `work` when the scope ends. */
export function onEnd(work) {
  owner?.push(work)
}

const SVG = new Set('svg g path line polyline polygon circle rect text title desc'.split(' '))

/** Builds an element. Properties: `class`, `on…` listeners, attributes; functions are effects. */
export function h(tag, props, ...children) {
  const node = SVG.has(tag) && tag !== 'title' ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag)
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value)
    else if (name === 'ref') value(node)
    else if (typeof value === 'function') effect(() => put(node, name, value()))
    else put(node, name, value)
  }
  append(node, children)
  return node
}

function put(node, name, value) {
  if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'indeterminate' || name === 'selected') {
    if (node[name] !== value) node[name] = value ?? ''
  } else if (value === null || value === undefined || value === false) node.removeAttribute(name)
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? '' : String(value))
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue
    if (typeof child === 'function') parent.append(dynamic(child))
    else parent.append(child instanceof Node ? child : document.createTextNode(String(child)))
  }
}

/** Returns nodes that an effect replaces. A text stays the same node. */
function dynamic(work) {
  const [start, end] = [document.createComment(''), document.createComment('')]
  const fragment = document.createDocumentFragment()
  fragment.append(start, end)
  effect(() => {
    const value = work()
    const first = start.nextSibling
    if ((typeof value === 'string' || typeof value === 'number') && first.nodeType === Node.TEXT_NODE && first.nextSibling === end) {
      if (first.data !== String(value)) first.data = String(value)
      return
    }
    // Parts inside may have added nodes since, so everything between the marks goes.
    while (start.nextSibling !== end) start.nextSibling.remove()
    const holder = document.createDocumentFragment()
    append(holder, [value])
    end.before(holder)
  })
  return fragment
}

/** Returns the nodes of a list. A node is built once for each key and moves with its item. */
export function each(items, key, render) {
  const end = document.createComment('')
  const fragment = document.createDocumentFragment()
  fragment.append(end)
  let known = new Map()
  effect(() => {
    const list = items() ?? []
    const next = new Map()
    for (const item of list) {
      const name = key(item)
      let entry = known.get(name)
      known.delete(name)
      if (entry) entry.item.set(item)
      else {
        const value = signal(item)
        const [node, stop] = scope(() => render(value))
        entry = { item: value, node, stop }
      }
      next.set(name, entry)
    }
    for (const entry of known.values()) {
      entry.stop()
      entry.node.remove()
    }
    let place = end
    for (const entry of [...next.values()].reverse()) {
      if (entry.node.nextSibling !== place) place.before(entry.node)
      place = entry.node
    }
    known = next
  })
  onEnd(() => known.forEach((entry) => entry.stop()))
  return fragment
}
