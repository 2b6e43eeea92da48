'use strict'
// What a MQTT.js client may expect of a broker: `run.js HOST PORT VERSION [WORD]`, version 3.1, 3.1.1 or 5;
// with a word only the checks that have it in their name.
//
// Prints one line for each check and, last, how many passed; ends with 1 when one failed.

const { Session } = require('./session')
const { checks } = require('./checks')

/** Topics and client ids of one check. 3.1 allows 23 characters in a client id. */
class Names {
  constructor (version, number) {
    this.version = version
    this.number = number
  }

  topic (rest) {
    return `js/${this.version}/${this.number}/${rest}`
  }

  open (name, options) {
    return Session.open(this.version, `js${this.version}-${this.number}-${name}`, options)
  }

  /** Whether CONNACK says so; in 3.1 it does not say. */
  wasKept (session) {
    return this.version === 3 || session.connack.sessionPresent
  }

  /** A session that outlives its connection. */
  kept (name) {
    const properties = this.version === 5 ? { properties: { sessionExpiryInterval: 600 } } : {}
    return this.open(name, { clean: false, ...properties })
  }
}

async function main () {
  const [host, port, text, word = ''] = process.argv.slice(2)
  const version = { 3.1: 3, '3.1.1': 4, 5: 5 }[text]
  Session.url = `mqtt://${host}:${port}`
  let [passed, failed] = [0, 0]
  for (const [number, { name, versions, body }] of checks.entries()) {
    if (!versions.includes(version) || !name.includes(word)) continue
    try {
      await body(new Names(version, number))
      passed += 1
      console.log(`ok      ${name}`)
    } catch (error) {
      failed += 1
      console.log(`FAILED  ${name}\n${error.stack}`)
    }
    for (const client of Session.all.splice(0)) client.end(true)
  }
  console.log(`${passed} passed, ${failed} failed`)
  process.exit(failed === 0 ? 0 : 1)
}

main()
