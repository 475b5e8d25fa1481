// Properties of entities: `{ name, type, value }`, where the value is the text that a reader edits. Int64 is
// always text, because a number of JavaScript would round it. An absent property is not null and not empty.

export const TYPES = ['String', 'Int32', 'Int64', 'Double', 'Boolean', 'DateTime', 'Guid', 'Binary']
const SYSTEM = new Set(['PartitionKey', 'RowKey', 'Timestamp'])

/** Reads an entity from JSON with full metadata. */
export function read(json) {
  const properties = []
  for (const [name, value] of Object.entries(json)) {
    if (name.includes('@odata.') || name.startsWith('odata.') || SYSTEM.has(name)) continue
    const declared = json[`${name}@odata.type`]?.replace('Edm.', '')
    const guessed = typeof value === 'boolean' ? 'Boolean' : typeof value === 'number' ? (Number.isInteger(value) ? 'Int32' : 'Double') : 'String'
    properties.push({ name, type: declared ?? guessed, value: String(value) })
  }
  return { partition: json.PartitionKey, row: json.RowKey, etag: json['odata.etag'], timestamp: json.Timestamp, properties }
}

/** Writes properties as JSON with their types. Fails if a value does not fit its type. */
export function write(partition, row, properties) {
  const json = { PartitionKey: partition, RowKey: row }
  for (const { name, type, value } of properties) {
    json[name] = convert(name, type, value)
    if (!['String', 'Int32', 'Boolean'].includes(type)) json[`${name}@odata.type`] = `Edm.${type}`
  }
  return json
}

function convert(name, type, value) {
  const fits = {
    Int32: () => /^-?\d+$/.test(value) && Number(value) === (Number(value) | 0),
    Int64: () => /^-?\d{1,19}$/.test(value),
    Double: () => value.trim() !== '' && (!Number.isNaN(Number(value)) || value === 'NaN'),
    Boolean: () => value === 'true' || value === 'false',
    DateTime: () => !Number.isNaN(Date.parse(value)),
    Guid: () => /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(value),
    Binary: () => /^[A-Za-z0-9+/]*={0,2}$/.test(value),
  }[type]
  if (fits && !fits()) throw new TypeError(`${name}: ${value} (${type})`)
  if (type === 'Int32') return Number(value)
  if (type === 'Double') return ['NaN', 'Infinity', '-Infinity'].includes(value) ? value : Number(value)
  return type === 'Boolean' ? value === 'true' : value
}

/** Returns the properties of `mine` that differ from `opened`. A merge cannot remove a property. */
export function changed(opened, mine) {
  const before = new Map(opened.map((it) => [it.name, it]))
  return mine.filter((it) => before.get(it.name)?.value !== it.value || before.get(it.name)?.type !== it.type)
}

/** Returns one line for each property of the three states, with whether they differ. */
export function compare(opened, mine, theirs) {
  const states = [opened, mine, theirs].map((list) => new Map((list ?? []).map((it) => [it.name, it])))
  const names = [...new Set(states.flatMap((state) => [...state.keys()]))]
  const text = (it) => (it ? `${it.value} · ${it.type}` : null)
  return names.map((name) => {
    const [before, own, other] = states.map((state) => text(state.get(name)))
    return { name, before, own, other, isMine: before !== own, isTheirs: before !== other }
  })
}

const quote = (text) => encodeURIComponent(text.replaceAll("'", "''")).replaceAll("'", '%27')
export const address = (table, partition, row) => `/${encodeURIComponent(table)}(PartitionKey=%27${quote(partition)}%27,RowKey=%27${quote(row)}%27)`
