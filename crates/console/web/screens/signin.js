// Sign in: a link from the terminal needs nothing; else the development account, an account's key, or the
// operator's password.

import { h, signal } from '../lib/view.js'
import { LANGUAGES, choose, language, t } from '../lib/i18n.js'
import { session, signIn } from '../lib/api.js'
import { button, copyable, field, problem } from '../ui/parts.js'

export function signInScreen() {
  const failure = signal(null)
  const busy = signal(false)
  const attempt = async (how) => {
    busy.set(true)
    failure.set(null)
    try {
      await signIn(how)
    } catch (error) {
      failure.set(error)
    } finally {
      busy.set(false)
    }
  }
  let [name, key, password] = [null, null, null]
  const submit = (event) => {
    event.preventDefault()
    attempt({ account: { name: name.value.trim(), key: key.value.trim() } })
    key.value = ''
  }
  return h('main', { class: 'sign' },
    h('div', { class: 'sign-card' },
      h('div', { class: 'sign-head' }, h('img', { src: new URL('../icon.svg', import.meta.url), alt: '', width: 56, height: 56 }), h('h1', {}, 'Lazuli'), h('p', {}, () => t('sign.tagline'))),
      () => failure() && problem(failure()),
      () => session()?.development && h('section', {}, button(t('sign.development', { name: session().development }), () => attempt({ development: true }), { kind: 'primary wide', disabled: busy }),
        h('p', { class: 'hint' }, () => t('sign.development.why')), h('div', { class: 'or' }, h('span', {}, () => t('sign.or')))),
      h('form', { onsubmit: submit },
        field(() => t('sign.account'), h('input', { type: 'text', autocomplete: 'username', spellcheck: 'false', autocapitalize: 'none', required: true, ref: (node) => (name = node) })),
        field(() => t('sign.key'), h('input', { type: 'password', autocomplete: 'off', required: true, ref: (node) => (key = node) })),
        h('button', { type: 'submit', class: () => `button wide ${session()?.development ? '' : 'primary'}`, disabled: busy }, () => t('sign.in'))),
      () => session()?.password && h('form', { onsubmit: (event) => { event.preventDefault(); attempt({ password: password.value }); password.value = '' } },
        field(() => t('sign.password'), h('input', { type: 'password', autocomplete: 'current-password', required: true, ref: (node) => (password = node) })),
        h('button', { type: 'submit', class: 'button wide', disabled: busy }, () => t('sign.operator'))),
      h('details', {}, h('summary', {}, () => t('sign.link')), h('p', {}, () => t('sign.link.how')), copyable('lazuli console')),
      h('label', { class: 'languages' }, h('span', { class: 'sr' }, () => t('language')), h('select', { onchange: (event) => choose(event.target.value) },
        Object.entries(LANGUAGES).map(([code, label]) => h('option', { value: code, lang: code, selected: code === language.peek() }, label))))))
}
