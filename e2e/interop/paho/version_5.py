"""The checks of what only MQTT 5.0 has."""

import time

from paho.mqtt.subscribeoptions import SubscribeOptions

from checks import check
from session import Session, properties


@check("5")
def properties_are_passed_on_unchanged_and_in_order(names):
    topic = names.topic("properties")
    reader, writer = names.session("r"), names.session("w")
    reader.subscribe((topic, 2))
    sent = {
        "PayloadFormatIndicator": 1,
        "MessageExpiryInterval": 1000,
        "ContentType": "text/plain; charset=utf-8",
        "ResponseTopic": "answers/é",
        "CorrelationData": b"\x00\x01\xff",
        "UserProperty": [("b", "2"), ("a", "1"), ("b", "again"), ("", "")],
    }
    for qos in (0, 1, 2):
        writer.publish(topic, "x", qos=qos, **sent)
        got = reader.next().properties
        assert got.PayloadFormatIndicator == 1
        assert got.MessageExpiryInterval in (999, 1000)
        assert got.ContentType == sent["ContentType"]
        assert got.ResponseTopic == sent["ResponseTopic"]
        assert got.CorrelationData == sent["CorrelationData"]
        assert got.UserProperty == sent["UserProperty"], got.UserProperty


@check("5")
def properties_survive_a_queue_and_a_retained_message(names):
    topic = names.topic("kept")
    reader, writer = names.kept("r"), names.session("w")
    reader.subscribe((topic, 1))
    reader.disconnect()
    sent = {"ContentType": "a/b", "CorrelationData": b"\xff", "UserProperty": [("k", "v"), ("k", "w")]}
    writer.publish(topic, "x", retain=True, **sent)
    late = names.session("late")
    late.subscribe((topic, 1))
    for session in (names.kept("r"), late):
        got = session.next().properties
        assert (got.ContentType, got.CorrelationData, got.UserProperty) == tuple(sent.values()), got


@check("5")
def a_topic_alias_stands_for_its_topic(names):
    first, second = names.topic("alias/1"), names.topic("alias/2")
    reader, writer = names.session("r"), names.session("w")
    assert writer.given.TopicAliasMaximum >= 2
    reader.subscribe((names.topic("alias/+"), 1))
    for topic, alias in ((first, 1), ("", 1), (second, 2), ("", 1), ("", 2), (second, 1), ("", 1)):
        writer.publish(topic, "x", TopicAlias=alias)
    expected = [first, first, second, first, second, second, second]
    assert [topic for topic, _, _, _ in reader.take(7)] == expected


@check("5")
def a_client_that_accepts_aliases_gets_the_right_topics(names):
    reader = names.session("r", connect=properties("CONNECT", TopicAliasMaximum=2))
    writer = names.session("w")
    reader.subscribe((names.topic("hot/#"), 0))
    expected = [names.topic(f"hot/{number % 5}") for number in range(100)]
    for topic in expected:
        writer.publish(topic, "x", qos=0)
    # paho does not resolve aliases; it shows an empty topic with the alias.
    known, topics = {}, []
    for message in (reader.next() for _ in expected):
        alias = getattr(message.properties, "TopicAlias", None)
        if message.topic and alias:
            known[alias] = message.topic
        topics.append(message.topic or known[alias])
    assert topics == expected
    assert all(1 <= alias <= 2 for alias in known)


@check("5")
def the_identifiers_of_all_matching_subscriptions_come_with_one_copy(names):
    topic = names.topic("ids/x")
    reader, writer = names.session("r"), names.session("w")
    reader.subscribe((names.topic("ids/#"), 0), identifier=7)
    reader.subscribe((names.topic("ids/+"), 1), identifier=268_435_455)
    reader.subscribe((names.topic("end"), 1))
    writer.publish(topic, "x", qos=2)
    message = reader.next()
    assert sorted(message.properties.SubscriptionIdentifier) == [7, 268_435_455]
    assert message.qos == 1
    reader.expect_nothing_before(names.topic("end"))


@check("5")
def subscription_options_are_followed(names):
    topic, end = names.topic("options"), names.topic("end")
    writer = names.session("w")
    writer.publish(topic, "retained", retain=True)
    reader = names.session("r")
    reader.subscribe((end, 1))
    reader.subscribe((topic, SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True, retainHandling=2)))
    reader.publish(topic, "own")
    writer.publish(topic, "live", retain=True)
    assert reader.take(1) == [(topic, "live", 1, True)]
    for handling, comes in ((1, False), (0, True)):
        reader.subscribe((topic, SubscribeOptions(qos=1, retainHandling=handling)))
        if comes:
            assert reader.take(1) == [(topic, "live", 1, True)]
        reader.expect_nothing_before(end)


@check("5")
def a_session_ends_when_its_expiry_has_passed(names):
    def connect(expiry, clean=False):
        return names.session("r", clean=clean, connect=properties("CONNECT", SessionExpiryInterval=expiry))

    connect(600, clean=True).disconnect()
    again = connect(600)
    assert again.session_present
    again.disconnect(SessionExpiryInterval=1)
    # Time that passes is what is checked.
    time.sleep(3)
    last = connect(0)
    assert not last.session_present
    last.disconnect()
    assert not connect(0).session_present


@check("5")
def a_will_waits_for_its_delay_and_a_reconnect_cancels_it(names):
    topic, end = names.topic("delayed"), names.topic("end")
    watcher = names.session("w")
    watcher.subscribe((topic, 1), (end, 1))

    def connect(name, delay):
        will = {"topic": topic, "payload": name, "qos": 1, "properties": properties("WILLMESSAGE", WillDelayInterval=delay)}
        return names.session(name, clean=False, will=will, connect=properties("CONNECT", SessionExpiryInterval=600))

    connect("back", 3).vanish()
    connect("back", 3).disconnect()
    connect("gone", 1).vanish()
    watcher.expect_nothing_before(end)
    assert watcher.take(1) == [(topic, "gone", 1, False)]
    time.sleep(3)
    watcher.expect_nothing_before(end)


@check("5")
def a_will_has_properties_and_comes_with_disconnect_0x04(names):
    topic = names.topic("will")
    watcher = names.session("w")
    watcher.subscribe((topic, 1))
    given = properties("WILLMESSAGE", ContentType="a/b", UserProperty=[("k", "v"), ("k", "w")])
    will = {"topic": topic, "payload": "x", "qos": 1, "properties": given}
    names.session("p", will=will).disconnect(reason=0x04)
    got = watcher.next().properties
    assert (got.ContentType, got.UserProperty) == ("a/b", [("k", "v"), ("k", "w")]), got


@check("5")
def a_receive_maximum_of_one_still_delivers_everything(names):
    topic = names.topic("slow")
    reader = names.session("r", connect=properties("CONNECT", ReceiveMaximum=1))
    writer = names.session("w")
    reader.subscribe((topic, 2))
    expected = [(topic, str(number), 1 + number % 2, False) for number in range(50)]
    for _, payload, qos, _ in expected:
        writer.publish(topic, payload, qos=qos)
    assert reader.take(50) == expected


@check("5")
def a_message_larger_than_the_client_accepts_is_left_out(names):
    topic = names.topic("size")
    reader = names.session("r", connect=properties("CONNECT", MaximumPacketSize=200))
    other, writer = names.session("o"), names.session("w")
    for session in (reader, other):
        session.subscribe((topic, 2))
    for payload in ("small", "x" * 300, "small again"):
        for qos in (0, 1, 2):
            writer.publish(topic, payload, qos=qos)
    assert [payload for _, payload, _, _ in reader.take(6)] == ["small"] * 3 + ["small again"] * 3
    assert len(other.take(9)) == 9


@check("5")
def an_expired_message_is_not_delivered(names):
    topic = names.topic("expiry")
    reader, writer = names.kept("r"), names.session("w")
    reader.subscribe((topic, 1))
    reader.disconnect()
    writer.publish(topic, "short", MessageExpiryInterval=1)
    writer.publish(topic, "long", MessageExpiryInterval=1000)
    time.sleep(2.5)
    message = names.kept("r").next()
    assert message.payload == b"long"
    assert 990 <= message.properties.MessageExpiryInterval <= 998, message.properties


@check("5")
def an_empty_client_id_is_assigned_one(names):
    session = Session("5", "")
    assert session.given.AssignedClientIdentifier
