'use strict'
// What a MQTT.js client may expect. Each check is `[name, versions, function]`; version 3 is 3.1, 4 is 3.1.1.

const assert = require('node:assert/strict')

const EVERY = [3, 4, 5]
const checks = []

function check (name, versions, body) {
  checks.push({ name, versions, body })
}

check('delivered QoS is the lower of publish and subscription', EVERY, async names => {
  const [reader, writer] = [await names.open('r'), await names.open('w')]
  for (const granted of [0, 1, 2]) {
    const topic = names.topic(`min/${granted}`)
    assert.deepEqual(await reader.subscribe(topic, { qos: granted }), [granted])
    for (const qos of [0, 1, 2]) {
      await writer.publish(topic, `${granted}${qos}`, { qos })
      assert.deepEqual(await reader.take(1), [[topic, `${granted}${qos}`, Math.min(granted, qos), false]])
    }
  }
})

check('many messages of each QoS arrive once and in order', EVERY, async names => {
  const [reader, writer] = [await names.open('r'), await names.open('w')]
  const expected = Array.from({ length: 200 }, (_, number) => String(number))
  for (const qos of [0, 1, 2]) {
    const topic = names.topic(`order/${qos}`)
    await reader.subscribe(topic, { qos })
    await Promise.all(expected.map(payload => writer.publish(topic, payload, { qos })))
    assert.deepEqual((await reader.take(200)).map(([, payload]) => payload), expected)
  }
})

check('a kept session gets what came while it was away', EVERY, async names => {
  const topic = names.topic('away')
  const [first, writer] = [await names.kept('r'), await names.open('w')]
  assert.equal(first.connack.sessionPresent, false)
  await first.subscribe(topic, { qos: 2 })
  await first.disconnect()
  for (const [number, qos] of [1, 2, 1, 2].entries()) await writer.publish(topic, String(number), { qos })

  const again = await names.kept('r')

  assert.ok(names.wasKept(again))
  // Order holds within a QoS: the library hands a QoS 2 message over at PUBREL.
  const got = (await again.take(4)).map(([, payload, qos]) => [qos, payload])
  for (const [qos, payloads] of [[1, ['0', '2']], [2, ['1', '3']]]) {
    assert.deepEqual(got.filter(([of]) => of === qos).map(([, payload]) => payload), payloads)
  }
})

check('a retained message is set, replaced and cleared', EVERY, async names => {
  const [topic, end] = [names.topic('retained/x'), names.topic('end')]
  const writer = await names.open('w')
  for (const payload of ['first', 'second']) await writer.publish(topic, payload, { retain: true })
  const reader = await names.open('r')
  await reader.subscribe(names.topic('retained/#'))
  assert.deepEqual(await reader.take(1), [[topic, 'second', 1, true]])
  await writer.publish(topic, '', { retain: true })

  const late = await names.open('late')
  await late.subscribe([names.topic('retained/+'), end])
  await writer.publish(end, 'sentinel')

  assert.equal((await late.next()).topic, end)
})

check('a will is published for a lost client and for no other', EVERY, async names => {
  const [topic, end] = [names.topic('will'), names.topic('end')]
  const [watcher, writer] = [await names.open('w'), await names.open('e')]
  await watcher.subscribe([topic, end], { qos: 2 })
  const will = { topic, payload: Buffer.from('lost'), qos: 2, retain: false }
  await (await names.open('p', { will })).disconnect()
  await writer.publish(end, 'sentinel')
  assert.equal((await watcher.next()).topic, end)

  await (await names.open('l', { will })).vanish()

  assert.deepEqual(await watcher.take(1), [[topic, 'lost', 2, false]])
})

check('a client with a keep alive of one second stays', EVERY, async names => {
  const topic = names.topic('alive')
  const [watcher, writer] = [await names.open('w', { keepalive: 1 }), await names.open('s', { keepalive: 1 })]
  await watcher.subscribe(topic)
  // Time that passes is what is checked: three keep alives.
  await new Promise(resolve => setTimeout(resolve, 3000))
  await writer.publish(topic, 'still here')
  assert.deepEqual(await watcher.take(1), [[topic, 'still here', 1, false]])
})

check('a shared subscription gives each message to one member', EVERY, async names => {
  const [topic, end] = [names.topic('shared'), names.topic('end')]
  const members = [await names.open('a'), await names.open('b')]
  const writer = await names.open('w')
  for (const member of members) {
    assert.deepEqual(await member.subscribe(`$share/js-${names.number}/${topic}`), [1])
    await member.subscribe(end)
  }
  const expected = Array.from({ length: 40 }, (_, number) => String(number))
  for (const payload of expected) await writer.publish(topic, payload)
  await writer.publish(end, 'sentinel')

  const got = []
  for (const member of members) {
    const own = []
    for (let message; (message = await member.next()).topic !== end;) own.push(message.payload.toString())
    assert.ok(own.length > 0, 'a member got nothing')
    got.push(...own)
  }
  assert.deepEqual(got.sort((a, b) => a - b), expected)
})

check('topics in every script', EVERY, async names => {
  const [reader, writer] = [await names.open('r'), await names.open('w')]
  const shapes = [names.topic('straße/温度/🌊'), names.topic('//x'), `🌊js-${names.number}`, `/js-${names.number}`]
  for (const topic of shapes) {
    await reader.subscribe(topic)
    await writer.publish(topic, 'x')
    assert.deepEqual(await reader.take(1), [[topic, 'x', 1, false]])
  }
})

check('large and empty payloads pass unchanged', EVERY, async names => {
  const topic = names.topic('large')
  const [reader, writer] = [await names.open('r'), await names.open('w')]
  await reader.subscribe(topic, { qos: 2 })
  for (const size of [0, 1, 16_383, 16_384, 900_000]) {
    const payload = Buffer.from(Uint8Array.from({ length: size }, (_, index) => index % 251))
    for (const qos of [0, 1, 2]) {
      await writer.publish(topic, payload, { qos })
      assert.ok((await reader.next()).payload.equals(payload), `${size} bytes at QoS ${qos}`)
    }
  }
})

check('unsubscribe ends the delivery', EVERY, async names => {
  const [topic, end] = [names.topic('gone'), names.topic('end')]
  const [reader, writer] = [await names.open('r'), await names.open('w')]
  await reader.subscribe([topic, end])
  await reader.unsubscribe(topic)
  await writer.publish(topic, 'not for you')
  await writer.publish(end, 'sentinel')
  assert.equal((await reader.next()).topic, end)
})

check('a second connection takes the client id over', EVERY, async names => {
  const first = await names.open('same')
  const second = await names.open('same')
  const farewell = await first.ended()
  if (names.version === 5) assert.equal(farewell.reasonCode, 0x8E)
  await second.subscribe(names.topic('x'))
})

check('properties are passed on unchanged and in order', [5], async names => {
  const topic = names.topic('properties')
  const [reader, writer] = [await names.open('r'), await names.open('w')]
  await reader.subscribe(topic, { qos: 2 })
  const properties = {
    payloadFormatIndicator: true,
    contentType: 'text/plain; charset=utf-8',
    responseTopic: 'answers/é',
    correlationData: Buffer.from([0, 1, 255]),
    userProperties: { b: ['2', 'again'], a: '1' }
  }
  for (const qos of [0, 1, 2]) {
    await writer.publish(topic, 'x', { qos, properties: { ...properties, messageExpiryInterval: 1000 } })
    const { messageExpiryInterval, ...got } = (await reader.next()).properties
    assert.deepEqual({ ...got, userProperties: { ...got.userProperties } }, properties)
    assert.ok([999, 1000].includes(messageExpiryInterval), `expiry ${messageExpiryInterval}`)
  }
})

check('topic aliases in both directions are made and resolved by the library', [5], async names => {
  const topics = ['1', '2', '3'].map(each => names.topic(`alias/${each}`))
  const writer = await names.open('w', { autoAssignTopicAlias: true })
  const reader = await names.open('r', { properties: { topicAliasMaximum: 2 } })
  assert.ok(writer.connack.properties.topicAliasMaximum >= 1)
  await reader.subscribe(names.topic('alias/+'))
  const expected = Array.from({ length: 60 }, (_, number) => topics[number % 3])
  for (const topic of expected) await writer.publish(topic, 'x')
  assert.deepEqual((await reader.take(60)).map(([topic]) => topic), expected)
})

check('the identifiers of all matching subscriptions come with one copy', [5], async names => {
  const topic = names.topic('ids/x')
  const [reader, writer] = [await names.open('r'), await names.open('w')]
  await reader.subscribe(names.topic('ids/#'), { qos: 0, properties: { subscriptionIdentifier: 7 } })
  await reader.subscribe(names.topic('ids/+'), { qos: 1, properties: { subscriptionIdentifier: 268_435_455 } })
  await writer.publish(topic, 'x', { qos: 2 })
  const message = await reader.next()
  assert.deepEqual([...message.properties.subscriptionIdentifier].sort((a, b) => a - b), [7, 268_435_455])
  assert.equal(message.qos, 1)
})

check('a session ends when its expiry has passed', [5], async names => {
  const open = sessionExpiryInterval => names.open('r', { clean: false, properties: { sessionExpiryInterval } })
  await (await open(600)).disconnect()
  const again = await open(600)
  assert.equal(again.connack.sessionPresent, true)
  await again.disconnect({ properties: { sessionExpiryInterval: 1 } })
  // Time that passes is what is checked.
  await new Promise(resolve => setTimeout(resolve, 3000))
  assert.equal((await open(0)).connack.sessionPresent, false)
})

check('a receive maximum of one still delivers everything', [5], async names => {
  const topic = names.topic('slow')
  const reader = await names.open('r', { properties: { receiveMaximum: 1 } })
  const writer = await names.open('w')
  await reader.subscribe(topic, { qos: 2 })
  const expected = Array.from({ length: 50 }, (_, number) => [topic, String(number), 1 + number % 2, false])
  for (const [, payload, qos] of expected) await writer.publish(topic, payload, { qos })
  assert.deepEqual(await reader.take(50), expected)
})

module.exports = { checks }
