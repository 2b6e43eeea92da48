"""A paho-mqtt client whose callbacks end in queues, so that a check reads like a conversation.

Every wait has a deadline: a check fails, it never hangs.
"""

import queue
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

VERSIONS = {"3.1": mqtt.MQTTv31, "3.1.1": mqtt.MQTTv311, "5": mqtt.MQTTv5}
DEADLINE_SECS = 20


def properties(packet, **values):
    """The 5.0 properties of a packet; names as in paho (`SessionExpiryInterval=60`)."""
    made = Properties(getattr(PacketTypes, packet))
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Session:
    """One client, connected on construction."""

    host = "127.0.0.1"
    port = 1883

    def __init__(self, version, client_id, clean=True, will=None, keep_alive=30, connect=None):
        self.version = version
        self.messages = queue.Queue()
        self._acks = queue.Queue()
        self._connacks = queue.Queue()
        self._ends = queue.Queue()
        protocol = VERSIONS[version]
        more = {} if version == "5" else {"clean_session": clean}
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=protocol, reconnect_on_failure=False, **more
        )
        self.client.on_connect = lambda _c, _u, flags, reason, given: self._connacks.put((flags, reason, given))
        self.client.on_disconnect = lambda _c, _u, _flags, reason, _p: self._ends.put(reason)
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda _c, _u, mid, reasons, _p: self._acks.put((mid, reasons))
        self.client.on_unsubscribe = lambda _c, _u, mid, reasons, _p: self._acks.put((mid, reasons))
        self.client.on_publish = lambda _c, _u, mid, reason, _p: self._acks.put((mid, [reason]))
        if will is not None:
            self.client.will_set(**will)
        more = {"clean_start": clean, "properties": connect} if version == "5" else {}
        self.client.connect(self.host, self.port, keepalive=keep_alive, **more)
        self.client.loop_start()
        self.flags, self.reason, self.given = self._connacks.get(timeout=DEADLINE_SECS)
        assert not self.reason.is_failure, f"CONNACK {self.reason}"

    @property
    def session_present(self):
        return self.flags.session_present

    def _acknowledged(self, mid):
        deadline = time.monotonic() + DEADLINE_SECS
        kept = []
        try:
            while True:
                got, reasons = self._acks.get(timeout=max(0.01, deadline - time.monotonic()))
                if got == mid:
                    return reasons
                kept.append((got, reasons))
        finally:
            for each in kept:
                self._acks.put(each)

    def subscribe(self, *filters, identifier=None):
        """Filters are `(filter, qos)` or `(filter, SubscribeOptions)`; answers the reason codes."""
        if self.version == "5":
            filters = [(f, o if isinstance(o, SubscribeOptions) else SubscribeOptions(qos=o)) for f, o in filters]
            more = {"properties": properties("SUBSCRIBE", SubscriptionIdentifier=identifier)} if identifier else {}
            result, mid = self.client.subscribe(list(filters), **more)
        else:
            result, mid = self.client.subscribe(list(filters))
        assert result == mqtt.MQTT_ERR_SUCCESS, result
        return [reason.value for reason in self._acknowledged(mid)]

    def unsubscribe(self, topic_filter):
        result, mid = self.client.unsubscribe(topic_filter)
        assert result == mqtt.MQTT_ERR_SUCCESS, result
        return [reason.value for reason in self._acknowledged(mid)]

    def publish(self, topic, payload, qos=1, retain=False, **publish_properties):
        """Publishes and waits until paho has had the last acknowledgement of that QoS."""
        more = {"properties": properties("PUBLISH", **publish_properties)} if publish_properties else {}
        info = self.client.publish(topic, payload, qos=qos, retain=retain, **more)
        info.wait_for_publish(timeout=DEADLINE_SECS)
        assert info.is_published(), f"publish to {topic} at QoS {qos} was not acknowledged"

    def next(self):
        return self.messages.get(timeout=DEADLINE_SECS)

    def take(self, count):
        """The next messages as `(topic, payload, qos, retain)`."""
        taken = [self.next() for _ in range(count)]
        return [(message.topic, message.payload.decode(), message.qos, message.retain) for message in taken]

    def expect_nothing_before(self, sentinel):
        """Publishes to `sentinel`, which this client is subscribed to: nothing else has come before it."""
        self.publish(sentinel, "sentinel")
        message = self.next()
        assert message.topic == sentinel, f"{message.topic} {message.payload[:40]} came"

    def disconnect(self, reason=None, **disconnect_properties):
        more = {}
        if reason is not None:
            more["reasoncode"] = ReasonCode(PacketTypes.DISCONNECT, identifier=reason)
        if disconnect_properties:
            more["properties"] = properties("DISCONNECT", **disconnect_properties)
        self.client.disconnect(**more)
        self._ends.get(timeout=DEADLINE_SECS)
        self.client.loop_stop()

    def vanish(self):
        """Closes the socket without a DISCONNECT, as a lost device would."""
        self.client.loop_stop()
        self.client.socket().close()

    def fall_silent(self):
        """Keeps the socket, but sends nothing any more, no PINGREQ either."""
        self.client.loop_stop()

    def ended(self):
        """The reason of the end that the broker made."""
        reason = self._ends.get(timeout=DEADLINE_SECS)
        self.client.loop_stop()
        return reason
