// A reader of the XML that the services answer: elements, attributes, text, and the five entities. It builds
// plain objects and never nodes, so content of clients cannot become a part of the page.

const ENTITIES = { lt: '<', gt: '>', amp: '&', quot: '"', apos: "'" }
const decode = (text) =>
  text.replace(/&(#x?[\da-f]+|\w+);/gi, (all, name) => {
    if (name[0] !== '#') return ENTITIES[name] ?? all
    const code = name[1].toLowerCase() === 'x' ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10)
    return code <= 0x10ffff ? String.fromCodePoint(code) : all
  })

/** Parses a document. An element is `{ name, attributes, children, text }`. */
export function parse(source) {
  const root = { name: '', attributes: {}, children: [], text: '' }
  const open = [root]
  const token = /<\?[^]*?\?>|<!--[^]*?-->|<!\[CDATA\[([^]*?)\]\]>|<\/([^\s>]+)\s*>|<([^\s/>]+)((?:\s+[^\s=]+="[^"]*")*)\s*(\/?)>|([^<]+)/g
  for (const [, cdata, closing, opening, attributes, empty, text] of source.matchAll(token)) {
    const top = open[open.length - 1]
    if (text !== undefined) top.text += decode(text)
    else if (cdata !== undefined) top.text += cdata
    else if (closing !== undefined && open.length > 1) open.pop()
    else if (opening !== undefined) {
      const pairs = [...attributes.matchAll(/([^\s=]+)="([^"]*)"/g)].map(([, name, value]) => [name, decode(value)])
      const element = { name: opening, attributes: Object.fromEntries(pairs), children: [], text: '' }
      top.children.push(element)
      if (!empty) open.push(element)
    }
  }
  return root
}

/** Returns the first child with this name, or an empty element. */
export const child = (element, name) => element.children.find((it) => it.name === name) ?? { name, attributes: {}, children: [], text: '' }
export const all = (element, name) => element.children.filter((it) => it.name === name)
