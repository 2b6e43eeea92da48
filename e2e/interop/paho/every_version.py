"""The checks of what every version of MQTT has."""

import time

from checks import check


@check()
def delivered_qos_is_the_lower_of_publish_and_subscription(names):
    reader, writer = names.session("r"), names.session("w")
    for granted in (0, 1, 2):
        topic = names.topic(f"min/{granted}")
        assert reader.subscribe((topic, granted)) == [granted]
        for qos in (0, 1, 2):
            writer.publish(topic, f"{granted}{qos}", qos=qos)
            assert reader.take(1) == [(topic, f"{granted}{qos}", min(granted, qos), False)]


@check()
def many_messages_of_each_qos_arrive_once_and_in_order(names):
    reader, writer = names.session("r"), names.session("w")
    for qos in (0, 1, 2):
        topic = names.topic(f"order/{qos}")
        reader.subscribe((topic, qos))
        infos = [writer.client.publish(topic, str(number), qos=qos) for number in range(200)]
        for info in infos:
            info.wait_for_publish(20)
        assert [payload for _, payload, _, _ in reader.take(200)] == [str(number) for number in range(200)]
    reader.expect_nothing_before(names.topic("order/1"))


@check()
def a_kept_session_gets_what_came_while_it_was_away(names):
    topic = names.topic("away")
    reader, writer = names.kept("r"), names.session("w")
    assert not reader.session_present
    reader.subscribe((topic, 2))
    reader.disconnect()
    for number, qos in enumerate((1, 2, 1, 2)):
        writer.publish(topic, str(number), qos=qos)

    reader = names.kept("r")

    assert names.was_kept(reader)
    # Order holds within a QoS: paho hands a QoS 2 message over at PUBREL.
    got = [(qos, payload) for _, payload, qos, _ in reader.take(4)]
    assert sorted(got) == [(1, "0"), (1, "2"), (2, "1"), (2, "3")], got
    assert [one for one in got if one[0] == 1] == [(1, "0"), (1, "2")], got
    assert [one for one in got if one[0] == 2] == [(2, "1"), (2, "3")], got
    reader.disconnect()
    assert not names.session("r", clean=True).session_present


@check()
def a_client_that_vanished_in_a_kept_session_loses_nothing(names):
    topic = names.topic("vanished")
    reader, writer = names.kept("r"), names.session("w")
    reader.subscribe((topic, 1))
    reader.vanish()
    for number in range(20):
        writer.publish(topic, str(number))

    reader = names.kept("r")

    assert [payload for _, payload, _, _ in reader.take(20)] == [str(number) for number in range(20)]


@check()
def a_retained_message_is_set_replaced_and_cleared(names):
    topic = names.topic("retained/x")
    writer, live = names.session("w"), names.session("l")
    live.subscribe((topic, 1), (names.topic("end"), 1))
    for payload in ("first", "second"):
        writer.publish(topic, payload, retain=True)
        assert live.take(1) == [(topic, payload, 1, False)]
    reader = names.session("r")
    reader.subscribe((names.topic("retained/#"), 1))
    assert reader.take(1) == [(topic, "second", 1, True)]
    writer.publish(topic, "not retained")
    writer.publish(topic, "", retain=True)

    late = names.session("late")
    late.subscribe((names.topic("retained/+"), 1), (names.topic("end"), 1))

    late.expect_nothing_before(names.topic("end"))


@check()
def more_than_a_hundred_retained_messages_come_with_one_subscription(names):
    writer, reader = names.session("w"), names.session("r")
    topics = {names.topic(f"many/{number}") for number in range(150)}
    for topic in topics:
        writer.client.publish(topic, "kept", qos=1, retain=True)
    writer.publish(names.topic("other"), "barrier")

    reader.subscribe((names.topic("many/#"), 1))

    assert {topic for topic, _, _, retain in reader.take(150) if retain} == topics


@check()
def a_will_is_published_for_a_lost_client_and_for_no_other(names):
    topic = names.topic("will")
    watcher = names.session("w")
    watcher.subscribe((names.topic("#"), 2))
    will = {"topic": topic, "payload": "lost", "qos": 2}
    names.session("polite", will=will).disconnect()
    watcher.expect_nothing_before(names.topic("end"))

    names.session("lost", will=will).vanish()

    assert watcher.take(1) == [(topic, "lost", 2, False)]


@check()
def a_retained_will_is_retained(names):
    topic = names.topic("status")
    watcher = names.session("w")
    watcher.subscribe((topic, 1))
    names.session("lost", will={"topic": topic, "payload": "offline", "qos": 1, "retain": True}).vanish()
    assert watcher.take(1) == [(topic, "offline", 1, False)]

    late = names.session("late")
    late.subscribe((topic, 1))

    assert late.take(1) == [(topic, "offline", 1, True)]


@check()
def a_silent_client_is_closed_and_a_pinging_one_is_not(names):
    topic = names.topic("silent")
    watcher = names.session("w", keep_alive=1)
    watcher.subscribe((topic, 1))
    silent = names.session("s", keep_alive=1, will={"topic": topic, "payload": "silent", "qos": 1})

    silent.fall_silent()

    # The watcher has the same keep alive and outlives the other, because paho pings for it.
    assert watcher.take(1) == [(topic, "silent", 1, False)]


@check()
def a_shared_subscription_gives_each_message_to_one_member(names):
    topic, writer = names.topic("shared"), names.session("w")
    members = [names.session("a"), names.session("b")]
    for member in members:
        assert member.subscribe((f"$share/paho-{names.number}/{topic}", 1)) == [1]
    own = names.session("own")
    own.subscribe((topic, 1))

    for number in range(40):
        writer.publish(topic, str(number))

    expected = [str(number) for number in range(40)]
    assert [payload for _, payload, _, _ in own.take(40)] == expected
    deadline = time.monotonic() + 20
    while sum(member.messages.qsize() for member in members) < 40 and time.monotonic() < deadline:
        time.sleep(0.01)
    got = [[message.payload.decode() for message in member.messages.queue] for member in members]
    assert sorted(got[0] + got[1], key=int) == expected, got
    assert all(part == sorted(part, key=int) and part for part in got), got


@check()
def topics_in_every_script_and_of_every_shape(names):
    reader, writer = names.session("r"), names.session("w")
    for rest in ("straße/温度/🌊", "/", "//x", " ", "a" * 3000, "é" * 500):
        topic = names.topic(rest)
        reader.subscribe((topic, 1))
        writer.publish(topic, "x")
        assert reader.take(1) == [(topic, "x", 1, False)]
    for topic in (f"🌊paho-{names.number}", f"é{names.number}/é", f"/paho-{names.number}"):
        reader.subscribe((topic, 1))
        writer.publish(topic, "multi-byte first")
        assert reader.take(1) == [(topic, "multi-byte first", 1, False)]
    wild = names.session("wild")
    wild.subscribe((names.topic("+/温度/#"), 1))
    writer.publish(names.topic("straße/温度/🌊"), "x")
    assert wild.take(1) == [(names.topic("straße/温度/🌊"), "x", 1, False)]


@check()
def large_and_empty_payloads_pass_unchanged(names):
    topic = names.topic("large")
    reader, writer = names.session("r"), names.session("w")
    reader.subscribe((topic, 2))
    for size in (0, 1, 127, 128, 16_383, 16_384, 65_536, 900_000):
        payload = bytes(number % 251 for number in range(size))
        for qos in (0, 1, 2):
            writer.publish(topic, payload, qos=qos)
            assert reader.next().payload == payload, f"{size} bytes at QoS {qos}"


@check()
def unsubscribe_ends_the_delivery(names):
    topic, end = names.topic("gone"), names.topic("end")
    reader, writer = names.session("r"), names.session("w")
    reader.subscribe((topic, 1), (end, 1))
    reader.unsubscribe(topic)
    writer.publish(topic, "not for you")
    reader.expect_nothing_before(end)
    if names.version == "5":
        assert reader.unsubscribe(topic) == [0x11]


@check()
def a_second_connection_takes_the_client_id_over(names):
    topic = names.topic("over")
    first, writer = names.kept("same"), names.session("w")
    first.subscribe((topic, 1))

    second = names.kept("same")

    # paho shows the reason code of a DISCONNECT only where it has properties.
    first.ended()
    assert names.was_kept(second)
    writer.publish(topic, "to the second")
    assert second.take(1) == [(topic, "to the second", 1, False)]
