'use strict'
// A MQTT.js client as promises, so that a check reads like a conversation. Every wait has a deadline.

const mqtt = require('mqtt')

const DEADLINE_MS = 20_000

/** Resolves as `promise`, or rejects when the deadline passes first. */
function within (promise, what) {
  let timer
  const late = new Promise((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing for ${DEADLINE_MS} ms`)), DEADLINE_MS)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

/** Values that come and are awaited in order. */
class Queue {
  values = []
  #waiting = []

  put (value) {
    const waiting = this.#waiting.shift()
    if (waiting) waiting(value)
    else this.values.push(value)
  }

  take (what) {
    if (this.values.length > 0) return Promise.resolve(this.values.shift())
    return within(new Promise(resolve => this.#waiting.push(resolve)), what)
  }
}

class Session {
  static url = 'mqtt://127.0.0.1:1883'
  static all = []

  messages = new Queue()
  #ends = new Queue()

  /** Connects and resolves with the session; `connack` has what the broker said. */
  static async open (version, clientId, options = {}) {
    const session = new Session()
    const client = mqtt.connect(Session.url, {
      clientId,
      protocolVersion: version,
      protocolId: version === 3 ? 'MQIsdp' : 'MQTT',
      reconnectPeriod: 0,
      ...options
    })
    session.client = client
    Session.all.push(client)
    client.on('message', (topic, payload, packet) => session.messages.put({ ...packet, topic, payload }))
    client.on('disconnect', packet => { session.farewell = packet })
    client.on('close', () => session.#ends.put(session.farewell))
    session.connack = await within(new Promise((resolve, reject) => {
      client.once('connect', resolve)
      client.once('error', reject)
    }), `CONNECT of ${clientId}`)
    client.on('error', () => {})
    return session
  }

  async subscribe (filter, options = { qos: 1 }) {
    return (await within(this.client.subscribeAsync(filter, options), 'SUBACK')).map(each => each.qos)
  }

  unsubscribe (filter) {
    return within(this.client.unsubscribeAsync(filter), 'UNSUBACK')
  }

  /** Resolves with the last acknowledgement of the QoS. */
  publish (topic, payload, options = { qos: 1 }) {
    return within(this.client.publishAsync(topic, payload, { qos: 1, ...options }), `publish to ${topic}`)
  }

  next () {
    return this.messages.take('message')
  }

  /** The next messages as `[topic, payload, qos, retain]`. */
  async take (count) {
    const taken = []
    while (taken.length < count) {
      const { topic, payload, qos, retain } = await this.next()
      taken.push([topic, payload.toString(), qos, retain])
    }
    return taken
  }

  disconnect (options) {
    return within(this.client.endAsync(false, options ?? {}), 'DISCONNECT')
  }

  /** Closes the socket without a DISCONNECT, as a lost device would. */
  vanish () {
    this.client.stream.destroy()
    return this.#ends.take('close')
  }

  /** What the broker said when it closed: the DISCONNECT, if there was one. */
  ended () {
    return this.#ends.take('close')
  }
}

module.exports = { Session }
