// The frame: navigation, account, language, theme, live indicator, and the screen of the route.

import { computed, effect, h, onEnd, scope, signal, untracked } from './lib/view.js'
import { LANGUAGES, choose, language, t } from './lib/i18n.js'
import { call, refresh, session, signOut } from './lib/api.js'
import { go, link, route } from './lib/route.js'
import { listen, state as live, stop } from './lib/stream.js'
import { span } from './lib/format.js'
import { icon, iconButton, noticeArea, now } from './ui/parts.js'
import { signInScreen } from './screens/signin.js'
import { overviewScreen } from './screens/overview.js'
import { concurrencyScreen } from './screens/concurrency.js'
import { blobsScreen } from './screens/blobs.js'
import { filesScreen } from './screens/files.js'
import { queuesScreen } from './screens/queues.js'
import { tablesScreen } from './screens/tables.js'
import { labScreen } from './screens/lab.js'
import { traceScreen } from './screens/trace.js'
import { serverScreen } from './screens/server.js'

const SCREENS = {
  overview: overviewScreen,
  concurrency: concurrencyScreen,
  blobs: blobsScreen,
  tables: tablesScreen,
  queues: queuesScreen,
  files: filesScreen,
  lab: labScreen,
  trace: traceScreen,
  server: serverScreen,
}

const accounts = signal([])
const account = signal(localStorage.getItem('lazuli.account'))
const theme = signal(localStorage.getItem('lazuli.theme') ?? 'system')

effect(() => {
  document.documentElement.dataset.theme = theme()
})

async function loadAccounts() {
  const { items } = await call('GET', 'accounts')
  accounts.set(items)
  if (!items.some((it) => it.name === account.peek())) account.set(items[0]?.name ?? null)
}

function chooseAccount(name) {
  localStorage.setItem('lazuli.account', name)
  account.set(name)
  if (['blobs', 'tables', 'queues', 'files'].includes(route.peek().segments[0])) go([route.peek().segments[0]])
}

const name = computed(() => {
  const wanted = route().segments[0]
  const isOperator = session()?.principal?.role === 'operator'
  if (wanted === 'server' && session()?.principal && !isOperator) return 'overview'
  return wanted in SCREENS ? wanted : 'overview'
})

function navigation() {
  const entries = () => Object.keys(SCREENS).filter((it) => it !== 'server' || session()?.principal?.role === 'operator')
  return h('nav', { 'aria-label': () => t('navigation') },
    h('a', { class: 'brand', href: '#/overview', 'aria-label': 'Lazuli' }, h('img', { src: new URL('./icon.svg', import.meta.url), alt: '', width: 26, height: 26 }), h('span', {}, 'Lazuli')),
    h('ul', {}, () => entries().map((it) => h('li', {}, h('a', { href: link([it]), 'aria-current': () => (name() === it ? 'page' : null) }, icon(it), h('span', {}, () => t(`nav.${it}`)))))),
    h('p', { class: 'version' }, () => `Lazuli ${session()?.version ?? ''}`))
}

const liveText = () => (live().name === 'waiting' ? t('live.waiting', { seconds: span((now() - live().since) / 1000) }) : t(`live.${live().name}`))

function topBar() {
  return h('header', { class: 'top' },
    h('div', { class: 'where' }, h('label', {}, h('span', { class: 'sr' }, () => t('account')), h('select', { class: 'account', onchange: (event) => chooseAccount(event.target.value) },
      () => accounts().map((it) => h('option', { value: it.name, selected: it.name === account() }, it.name))))),
    h('span', { class: () => `pulse ${live().name}` }, h('i', { 'aria-hidden': 'true' }), h('span', {}, liveText)),
    h('div', { class: 'tools' },
      h('label', {}, h('span', { class: 'sr' }, () => t('language')), h('select', { onchange: (event) => choose(event.target.value), value: language },
        Object.entries(LANGUAGES).map(([code, label]) => h('option', { value: code, lang: code, selected: code === language.peek() }, label)))),
      h('label', {}, h('span', { class: 'sr' }, () => t('theme')), h('select', { onchange: (event) => { theme.set(event.target.value); localStorage.setItem('lazuli.theme', event.target.value) } },
        () => ['system', 'light', 'dark'].map((it) => h('option', { value: it, selected: it === theme.peek() }, t(`theme.${it}`))))),
      h('span', { class: 'user', title: () => t(`role.${session()?.principal?.role ?? 'account'}`) }, () => session()?.principal?.name ?? ''),
      () => iconButton('out', t('sign.out'), signOut)))
}

function frame() {
  // Every visible tab has one stream, so that the indicator is true on each screen.
  onEnd(listen('metrics', () => {}))
  const main = h('main', { id: 'main', tabindex: '-1' })
  let end = () => {}
  effect(() => {
    const [screen, isKnown] = [SCREENS[name()], account() !== null || name() === 'server']
    language()
    const user = session()?.principal
    if (!user) return
    untracked(() => {
      end()
      const [node, stopScreen] = scope(() => (isKnown ? screen({ account, accounts, session }) : h('p', {}, '…')))
      end = stopScreen
      main.replaceChildren(node)
      document.title = `${t(`nav.${name.peek()}`)} – Lazuli`
    })
  })
  return h('div', { class: 'frame' }, h('a', { class: 'skip', href: '#main', onclick: (event) => { event.preventDefault(); main.focus() } }, () => t('skip')), navigation(), h('div', { class: 'page' }, topBar(), main), noticeArea())
}

async function begin() {
  await choose()
  const token = /^#t=([\w-]+)$/.exec(location.hash)?.[1]
  if (token) history.replaceState(null, '', location.pathname + location.search + '#/overview')
  const root = document.getElementById('app')
  const screen = computed(() => (session() === undefined ? 'wait' : session().principal ? 'frame' : 'sign'))
  let end = () => {}
  effect(() => {
    const wanted = screen()
    untracked(() => {
      end()
      if (wanted !== 'frame') stop()
      if (wanted === 'frame') loadAccounts().catch(() => {})
      const [node, stopAll] = scope(() => ({ frame, sign: () => signInScreen(), wait: () => h('p', { class: 'wait' }, '…') })[wanted]())
      end = stopAll
      root.replaceChildren(node)
    })
  })
  if (token) {
    const { signIn } = await import('./lib/api.js')
    await signIn({ link: token }).catch(() => refresh())
    if (location.hash === '#/overview') route.set({ segments: ['overview'], query: new URLSearchParams() })
  } else await refresh()
}

begin()
