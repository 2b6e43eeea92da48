//! Packets made by hand, and what becomes of each: the tests of the codec and those over real sockets read them.
#![allow(dead_code, reason = "each reader uses its part")]

use tidemill_core::packet::{ReasonCode, Version};

/// In front of the packet: nothing, or a CONNECT of this version.
pub(crate) type After = Option<Version>;

const FIRST: After = None;
pub(crate) const V3_1: After = Some(Version::V3_1);
pub(crate) const V3_1_1: After = Some(Version::V3_1_1);
pub(crate) const V5: After = Some(Version::V5);

const OK: Option<ReasonCode> = None;
const MALFORMED: Option<ReasonCode> = Some(ReasonCode::MALFORMED_PACKET);
const PROTOCOL: Option<ReasonCode> = Some(ReasonCode::PROTOCOL_ERROR);
const VERSION: Option<ReasonCode> = Some(ReasonCode::UNSUPPORTED_PROTOCOL_VERSION);
const CLIENT_ID: Option<ReasonCode> = Some(ReasonCode::CLIENT_IDENTIFIER_NOT_VALID);
const NAME: Option<ReasonCode> = Some(ReasonCode::TOPIC_NAME_INVALID);
const FILTER: Option<ReasonCode> = Some(ReasonCode::TOPIC_FILTER_INVALID);
const ALIAS: Option<ReasonCode> = Some(ReasonCode::TOPIC_ALIAS_INVALID);

/// What it is, after what it comes, the bytes, and the reason code with which it is refused.
pub(crate) type Row = (&'static str, After, &'static [u8], Option<ReasonCode>);

pub(crate) const CONNECTS: &[Row] = &[
    ("3.1.1", FIRST, b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01c", OK),
    ("3.1", FIRST, b"\x10\x0f\0\x06MQIsdp\x03\x02\0\x3c\0\x01c", OK),
    ("5.0", FIRST, b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\x01c", OK),
    ("keep alive 0", FIRST, b"\x10\x0d\0\x04MQTT\x04\x02\0\0\0\x01c", OK),
    ("binary password", FIRST, b"\x10\x15\0\x04MQTT\x04\xc2\0\x3c\0\x01c\0\x01u\0\x03\xff\0\x80", OK),
    ("5.0, password without user name", FIRST, b"\x10\x11\0\x04MQTT\x05\x42\0\x3c\0\0\x01c\0\x01p", OK),
    ("5.0, empty client id with clean start", FIRST, b"\x10\x0d\0\x04MQTT\x05\x02\0\x3c\0\0\0", OK),
    ("5.0, empty client id without clean start", FIRST, b"\x10\x0d\0\x04MQTT\x05\0\0\x3c\0\0\0", OK),
    ("3.1.1, empty client id with clean session", FIRST, b"\x10\x0c\0\x04MQTT\x04\x02\0\x3c\0\0", OK),
    ("3.1.1, empty client id, clean session 0", FIRST, b"\x10\x0c\0\x04MQTT\x04\0\0\x3c\0\0", CLIENT_ID),
    ("3.1, empty client id", FIRST, b"\x10\x0e\0\x06MQIsdp\x03\x02\0\x3c\0\0", CLIENT_ID),
    ("will", FIRST, b"\x10\x13\0\x04MQTT\x04\x06\0\x3c\0\x01c\0\x01t\0\x01m", OK),
    (
        "5.0, will with a delay, QoS 2 and retain",
        FIRST,
        b"\x10\x1a\0\x04MQTT\x05\x36\0\x3c\0\0\x01c\x05\x18\0\0\0\x05\0\x01t\0\x01m",
        OK,
    ),
    (
        "5.0, bytes behind the will",
        FIRST,
        b"\x10\x1b\0\x04MQTT\x05\x36\0\x3c\0\0\x01c\x05\x18\0\0\0\x05\0\x01t\0\x01mx",
        MALFORMED,
    ),
    (
        "will with message expiry 0",
        FIRST,
        b"\x10\x1a\0\x04MQTT\x05\x06\0\x3c\0\0\x01c\x05\x02\0\0\0\0\0\x01t\0\x01m",
        OK,
    ),
    (
        "will with message expiry 0 behind every other property",
        FIRST,
        b"\x10\x3d\0\x04MQTT\x05\x06\0\x3c\x02\x17\x01\0\x01c\x26\x01\x01\x18\0\0\0\x05\x03\0\x01c\
            \x08\0\x01r\x09\0\x01d\x26\0\x01a\0\x01b\x02\0\0\0\0\x26\0\x01a\0\x01b\0\x01t\0\x01m",
        OK,
    ),
    (
        "will with message expiry 0 twice",
        FIRST,
        b"\x10\x1f\0\x04MQTT\x05\x06\0\x3c\0\0\x01c\x0a\x02\0\0\0\0\x02\0\0\0\0\0\x01t\0\x01m",
        MALFORMED,
    ),
    (
        "will with a topic alias",
        FIRST,
        b"\x10\x18\0\x04MQTT\x05\x06\0\x3c\0\0\x01c\x03\x23\0\x01\0\x01t\0\x01m",
        MALFORMED,
    ),
    (
        "will with a response topic of a wildcard",
        FIRST,
        b"\x10\x19\0\x04MQTT\x05\x06\0\x3c\0\0\x01c\x04\x08\0\x01#\0\x01t\0\x01m",
        PROTOCOL,
    ),
    ("unknown level", FIRST, b"\x10\x0d\0\x04MQTT\x06\x02\0\x3c\0\x01c", VERSION),
    ("level of a bridge", FIRST, b"\x10\x0d\0\x04MQTT\x84\x02\0\x3c\0\x01c", VERSION),
    ("level 3 behind MQTT", FIRST, b"\x10\x0d\0\x04MQTT\x03\x02\0\x3c\0\x01c", VERSION),
    ("level 4 behind MQIsdp", FIRST, b"\x10\x0f\0\x06MQIsdp\x04\x02\0\x3c\0\x01c", VERSION),
    ("other protocol name", FIRST, b"\x10\x0d\0\x04MQXX\x04\x02\0\x3c\0\x01c", MALFORMED),
    ("reserved bit of the flags", FIRST, b"\x10\x0d\0\x04MQTT\x04\x03\0\x3c\0\x01c", MALFORMED),
    ("reserved fixed header flags", FIRST, b"\x11\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01c", MALFORMED),
    ("will QoS 3", FIRST, b"\x10\x13\0\x04MQTT\x04\x1e\0\x3c\0\x01c\0\x01t\0\x01m", MALFORMED),
    ("5.0, will QoS 3", FIRST, b"\x10\x15\0\x04MQTT\x05\x1e\0\x3c\0\0\x01c\0\0\x01t\0\x01m", MALFORMED),
    ("will retain without will", FIRST, b"\x10\x0d\0\x04MQTT\x04\x22\0\x3c\0\x01c", MALFORMED),
    ("5.0, will retain without will", FIRST, b"\x10\x0e\0\x04MQTT\x05\x22\0\x3c\0\0\x01c", MALFORMED),
    ("5.0, will QoS without will", FIRST, b"\x10\x0e\0\x04MQTT\x05\x0a\0\x3c\0\0\x01c", MALFORMED),
    ("will topic with a wildcard", FIRST, b"\x10\x13\0\x04MQTT\x04\x06\0\x3c\0\x01c\0\x01#\0\x01m", NAME),
    ("empty will topic", FIRST, b"\x10\x12\0\x04MQTT\x04\x06\0\x3c\0\x01c\0\0\0\x01m", NAME),
    ("password without user name", FIRST, b"\x10\x10\0\x04MQTT\x04\x42\0\x3c\0\x01c\0\x01p", MALFORMED),
    ("bytes behind the last field", FIRST, b"\x10\x0f\0\x04MQTT\x04\x02\0\x3c\0\x01cxx", MALFORMED),
    ("5.0, bytes behind the last field", FIRST, b"\x10\x0f\0\x04MQTT\x05\x02\0\x3c\0\0\x01cx", MALFORMED),
    ("user name is missing", FIRST, b"\x10\x0d\0\x04MQTT\x04\x82\0\x3c\0\x01c", MALFORMED),
    ("empty", FIRST, b"\x10\0", MALFORMED),
    ("cut off in the protocol name", FIRST, b"\x10\x04\0\x04MQ", MALFORMED),
    ("U+0000 in the client id", FIRST, b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01\0", MALFORMED),
    ("client id is not UTF-8", FIRST, b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01\xff", MALFORMED),
    (
        "authentication data without method",
        FIRST,
        b"\x10\x12\0\x04MQTT\x05\x02\0\x3c\x04\x16\0\x01d\0\x01c",
        PROTOCOL,
    ),
    (
        "authentication method with data",
        FIRST,
        b"\x10\x16\0\x04MQTT\x05\x02\0\x3c\x08\x15\0\x01m\x16\0\x01d\0\x01c",
        OK,
    ),
    ("receive maximum 0", FIRST, b"\x10\x11\0\x04MQTT\x05\x02\0\x3c\x03\x21\0\0\0\x01c", MALFORMED),
    ("maximum packet size 0", FIRST, b"\x10\x13\0\x04MQTT\x05\x02\0\x3c\x05\x27\0\0\0\0\0\x01c", MALFORMED),
    ("boolean of 2", FIRST, b"\x10\x10\0\x04MQTT\x05\x02\0\x3c\x02\x17\x02\0\x01c", MALFORMED),
    ("property twice", FIRST, b"\x10\x12\0\x04MQTT\x05\x02\0\x3c\x04\x17\x01\x17\x01\0\x01c", MALFORMED),
    (
        "property of another packet",
        FIRST,
        b"\x10\x11\0\x04MQTT\x05\x02\0\x3c\x03\x23\0\x01\0\x01c",
        MALFORMED,
    ),
    ("property length straddles", FIRST, b"\x10\x10\0\x04MQTT\x05\x02\0\x3c\x01\x17\x01\0\x01c", MALFORMED),
    ("property length not minimal", FIRST, b"\x10\x0f\0\x04MQTT\x05\x02\0\x3c\x80\0\0\x01c", MALFORMED),
    ("5.0, remaining length not minimal", FIRST, b"\x10\x8e\0\0\x04MQTT\x05\x02\0\x3c\0\0\x01c", MALFORMED),
    ("3.1.1, remaining length not minimal", FIRST, b"\x10\x8d\0\0\x04MQTT\x04\x02\0\x3c\0\x01c", OK),
    ("remaining length of five bytes", FIRST, b"\x10\x80\x80\x80\x80\x01", MALFORMED),
    ("PUBLISH first", FIRST, b"\x30\x04\0\x01tm", PROTOCOL),
    ("TLS on the plain port", FIRST, b"\x16\x03\x01\x02\0\x01\0\x01\xfc", MALFORMED),
    ("HTTP on the plain port", FIRST, b"GET / HTTP/1.1\r\n\r\n", PROTOCOL),
    ("second CONNECT", V3_1_1, b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01c", PROTOCOL),
    ("second CONNECT, 5.0", V5, b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\x01c", PROTOCOL),
];

pub(crate) const PUBLISHES: &[Row] = &[
    ("QoS 0", V3_1_1, b"\x30\x04\0\x01tm", OK),
    ("QoS 1", V3_1, b"\x32\x06\0\x01t\0\x0am", OK),
    ("QoS 2, sent before, retained", V3_1_1, b"\x3d\x06\0\x01t\0\x0am", OK),
    ("empty payload", V3_1_1, b"\x30\x03\0\x01t", OK),
    ("5.0", V5, b"\x30\x05\0\x01t\0m", OK),
    ("topic of several bytes a character", V3_1_1, "\x30\x05\0\x02äm".as_bytes(), OK),
    ("topic of one slash", V3_1_1, b"\x30\x03\0\x01/", OK),
    ("alias without topic", V5, b"\x30\x07\0\0\x03\x23\0\x01m", OK),
    ("message expiry 0", V5, b"\x30\x0a\0\x01t\x05\x02\0\0\0\0m", OK),
    (
        "every property",
        V5,
        b"\x30\x29\0\x01t\x24\x01\x01\x02\0\0\0\x05\x03\0\x01c\x08\0\x01r\x09\0\x01d\x23\0\x01\
            \x26\0\x01a\0\x01b\x26\0\x01a\0\x01cm",
        OK,
    ),
    (
        "property length that cuts the last property",
        V5,
        b"\x30\x29\0\x01t\x23\x01\x01\x02\0\0\0\x05\x03\0\x01c\x08\0\x01r\x09\0\x01d\x23\0\x01\
            \x26\0\x01a\0\x01b\x26\0\x01a\0\x01cm",
        MALFORMED,
    ),
    ("topic is not UTF-8", V3_1_1, b"\x30\x04\0\x01\xffm", MALFORMED),
    ("surrogate in the topic", V3_1_1, b"\x30\x06\0\x03\xed\xa0\x80m", MALFORMED),
    ("U+0000 in the topic", V3_1_1, b"\x30\x04\0\x01\0m", NAME),
    ("+ in the topic", V3_1_1, b"\x30\x06\0\x03a/+m", NAME),
    ("# in the topic", V5, b"\x30\x05\0\x01#\0m", NAME),
    ("empty topic", V3_1_1, b"\x30\x03\0\0m", NAME),
    ("5.0, empty topic without alias", V5, b"\x30\x04\0\0\0m", PROTOCOL),
    ("packet id 0", V3_1_1, b"\x32\x06\0\x01t\0\0m", MALFORMED),
    ("5.0, packet id 0", V5, b"\x32\x07\0\x01t\0\0\0m", MALFORMED),
    ("packet id is missing", V3_1_1, b"\x32\x03\0\x01t", MALFORMED),
    ("QoS 3", V3_1_1, b"\x36\x06\0\x01t\0\x0am", MALFORMED),
    ("DUP with QoS 0", V3_1_1, b"\x38\x04\0\x01tm", MALFORMED),
    ("5.0, DUP with QoS 0", V5, b"\x38\x05\0\x01t\0m", MALFORMED),
    ("topic alias 0", V5, b"\x30\x08\0\x01t\x03\x23\0\0m", ALIAS),
    ("property twice", V5, b"\x30\x09\0\x01t\x04\x01\0\x01\0m", PROTOCOL),
    ("boolean of 2", V5, b"\x30\x07\0\x01t\x02\x01\x02m", PROTOCOL),
    ("property length straddles", V5, b"\x30\x07\0\x01t\x01\x01\x01m", MALFORMED),
    ("property length beyond the packet", V5, b"\x30\x05\0\x01t\x09m", MALFORMED),
    ("property length is missing", V5, b"\x30\x03\0\x01t", MALFORMED),
    ("property length not minimal", V5, b"\x30\x06\0\x01t\x80\0m", MALFORMED),
    ("unknown property", V5, b"\x30\x07\0\x01t\x02\x7f\x01m", MALFORMED),
    ("property of another packet", V5, b"\x30\x08\0\x01t\x03\x21\0\x01m", MALFORMED),
    ("response topic with a wildcard", V5, b"\x30\x09\0\x01t\x04\x08\0\x01#m", PROTOCOL),
    ("empty response topic", V5, b"\x30\x08\0\x01t\x03\x08\0\0m", PROTOCOL),
    ("U+0000 in a user property", V5, b"\x30\x0c\0\x01t\x07\x26\0\x01a\0\x01\0m", MALFORMED),
    ("content type is not UTF-8", V5, b"\x30\x09\0\x01t\x04\x03\0\x01\xffm", MALFORMED),
    ("subscription identifier from a client", V5, b"\x30\x07\0\x01t\x02\x0b\x01m", PROTOCOL),
    ("remaining length of five bytes", V5, b"\x30\x80\x80\x80\x80\x01", MALFORMED),
    ("5.0, remaining length not minimal", V5, b"\x30\x85\0\0\x01t\0m", MALFORMED),
];

pub(crate) const ACKS: &[Row] = &[
    ("PUBACK", V3_1_1, b"\x40\x02\0\x0a", OK),
    ("PUBREC", V3_1_1, b"\x50\x02\0\x0a", OK),
    ("PUBREL", V3_1_1, b"\x62\x02\0\x0a", OK),
    ("PUBCOMP", V3_1, b"\x70\x02\0\x0a", OK),
    ("5.0 PUBACK, short", V5, b"\x40\x02\0\x0a", OK),
    ("5.0 PUBACK, reason only", V5, b"\x40\x03\0\x0a\x10", OK),
    ("5.0 PUBACK, reason and no properties", V5, b"\x40\x04\0\x0a\x10\0", OK),
    ("5.0 PUBREC, reason string", V5, b"\x50\x08\0\x0a\x80\x04\x1f\0\x01w", OK),
    ("5.0 PUBREL, user property", V5, b"\x62\x0b\0\x0a\0\x07\x26\0\x01a\0\x01b", OK),
    ("5.0 PUBCOMP, id not found", V5, b"\x70\x03\0\x0a\x92", OK),
    ("packet id 0", V3_1_1, b"\x40\x02\0\0", MALFORMED),
    ("5.0, packet id 0", V5, b"\x62\x02\0\0", MALFORMED),
    ("reserved flags of PUBACK", V3_1_1, b"\x41\x02\0\x0a", MALFORMED),
    ("reserved flags of PUBREL", V5, b"\x60\x02\0\x0a", MALFORMED),
    ("3.1.1 with a reason", V3_1_1, b"\x40\x03\0\x0a\0", MALFORMED),
    ("cut off", V5, b"\x40\x01\0", MALFORMED),
    ("unknown reason", V5, b"\x40\x03\0\x0a\x01", MALFORMED),
    ("reason of another packet", V5, b"\x62\x03\0\x0a\x97", MALFORMED),
    ("bytes behind the properties", V5, b"\x40\x05\0\x0a\0\0\0", MALFORMED),
    ("property length not minimal", V5, b"\x40\x05\0\x0a\0\x80\0", MALFORMED),
    ("U+0000 in the reason string", V5, b"\x50\x08\0\x0a\x80\x04\x1f\0\x01\0", MALFORMED),
];

pub(crate) const SUBSCRIBES: &[Row] = &[
    ("3.1.1", V3_1_1, b"\x82\x06\0\x0a\0\x01t\x01", OK),
    ("two filters", V3_1_1, b"\x82\x0c\0\x0a\0\x03a/+\x01\0\x01#\x02", OK),
    ("5.0, every option", V5, b"\x82\x07\0\x0a\0\0\x01t\x2e", OK),
    ("5.0, identifier", V5, b"\x82\x09\0\x0a\x02\x0b\x07\0\x01t\x01", OK),
    ("5.0, largest identifier", V5, b"\x82\x0c\0\x0a\x05\x0b\xff\xff\xff\x7f\0\x01t\x01", OK),
    ("shared", V5, b"\x82\x10\0\x0a\0\0\x0a$share/g/t\x01", OK),
    ("filter below $SYS", V3_1_1, b"\x82\x0b\0\x0a\0\x06$SYS/#\0", OK),
    ("packet id 0", V3_1_1, b"\x82\x06\0\0\0\x01t\x01", MALFORMED),
    ("reserved fixed header flags", V3_1_1, b"\x80\x06\0\x0a\0\x01t\x01", MALFORMED),
    ("no filter", V3_1_1, b"\x82\x02\0\x0a", PROTOCOL),
    ("5.0, no filter", V5, b"\x82\x03\0\x0a\0", PROTOCOL),
    ("empty filter", V3_1_1, b"\x82\x05\0\x0a\0\0\x01", PROTOCOL),
    ("5.0, empty filter", V5, b"\x82\x06\0\x0a\0\0\0\x01", FILTER),
    ("options are missing", V3_1_1, b"\x82\x05\0\x0a\0\x01t", MALFORMED),
    ("QoS 3", V3_1_1, b"\x82\x06\0\x0a\0\x01t\x03", MALFORMED),
    ("reserved bits of the QoS", V3_1_1, b"\x82\x06\0\x0a\0\x01t\x05", MALFORMED),
    ("reserved bits of the options", V5, b"\x82\x07\0\x0a\0\0\x01t\x41", MALFORMED),
    ("retain handling 3", V5, b"\x82\x07\0\x0a\0\0\x01t\x31", MALFORMED),
    ("# before the end", V3_1_1, b"\x82\x0a\0\x0a\0\x05a/#/b\x01", FILTER),
    ("5.0, # beside a character", V5, b"\x82\x08\0\x0a\0\0\x02a#\x01", FILTER),
    ("+ beside a character", V3_1_1, b"\x82\x07\0\x0a\0\x02a+\x01", FILTER),
    ("U+0000 in the filter", V3_1_1, b"\x82\x06\0\x0a\0\x01\0\x01", FILTER),
    ("share without a filter", V5, b"\x82\x0e\0\x0a\0\0\x08$share/g\x01", FILTER),
    ("share without a name", V5, b"\x82\x0f\0\x0a\0\0\x09$share//t\x01", FILTER),
    ("share with a wildcard in its name", V5, b"\x82\x10\0\x0a\0\0\x0a$share/+/t\x01", FILTER),
    ("alias of a share without a filter", V5, b"\x82\x0d\0\x0a\0\0\x07$queue/\x01", FILTER),
    ("no local on the alias of a share", V5, b"\x82\x0e\0\x0a\0\0\x08$queue/t\x05", PROTOCOL),
    ("no local on a shared subscription", V5, b"\x82\x10\0\x0a\0\0\x0a$share/g/t\x05", PROTOCOL),
    ("identifier 0", V5, b"\x82\x09\0\x0a\x02\x0b\0\0\x01t\x01", MALFORMED),
    ("identifier twice", V5, b"\x82\x0b\0\x0a\x04\x0b\x01\x0b\x02\0\x01t\x01", MALFORMED),
    ("identifier not minimal", V5, b"\x82\x0a\0\x0a\x03\x0b\x81\0\0\x01t\x01", MALFORMED),
    ("property length not minimal", V5, b"\x82\x08\0\x0a\x80\0\0\x01t\x01", MALFORMED),
    ("UNSUBSCRIBE", V3_1_1, b"\xa2\x05\0\x0a\0\x01t", OK),
    ("UNSUBSCRIBE, 5.0", V5, b"\xa2\x06\0\x0a\0\0\x01t", OK),
    ("UNSUBSCRIBE, reserved flags", V5, b"\xa0\x06\0\x0a\0\0\x01t", MALFORMED),
    ("UNSUBSCRIBE, packet id 0", V3_1_1, b"\xa2\x05\0\0\0\x01t", MALFORMED),
    ("UNSUBSCRIBE, no filter", V5, b"\xa2\x03\0\x0a\0", PROTOCOL),
    ("UNSUBSCRIBE, bad filter", V3_1_1, b"\xa2\x09\0\x0a\0\x05a/#/b", FILTER),
];

pub(crate) const OTHERS: &[Row] = &[
    ("PINGREQ", V3_1, b"\xc0\0", OK),
    ("PINGREQ, 5.0", V5, b"\xc0\0", OK),
    ("PINGREQ with a body", V3_1_1, b"\xc0\x01x", MALFORMED),
    ("PINGREQ, reserved flags", V5, b"\xc1\0", MALFORMED),
    ("DISCONNECT", V3_1_1, b"\xe0\0", OK),
    ("DISCONNECT, 5.0, empty", V5, b"\xe0\0", OK),
    ("DISCONNECT, reason only", V5, b"\xe0\x01\x04", OK),
    ("DISCONNECT, reason and no properties", V5, b"\xe0\x02\x04\0", OK),
    ("DISCONNECT, session expiry", V5, b"\xe0\x07\0\x05\x11\0\0\0\x3c", OK),
    ("DISCONNECT, 3.1.1 with a body", V3_1_1, b"\xe0\x01\0", MALFORMED),
    ("DISCONNECT, reserved flags", V3_1_1, b"\xe2\0", MALFORMED),
    ("DISCONNECT, unknown reason", V5, b"\xe0\x01\x03", MALFORMED),
    ("DISCONNECT, server reference", V5, b"\xe0\x06\0\x04\x1c\0\x01s", PROTOCOL),
    ("DISCONNECT, session expiry twice", V5, b"\xe0\x0c\0\x0a\x11\0\0\0\x3c\x11\0\0\0\x3c", MALFORMED),
    ("DISCONNECT, quota exceeded", V5, b"\xe0\x01\x97", OK),
    ("DISCONNECT, server shutting down", V5, b"\xe0\x01\x8b", PROTOCOL),
    ("DISCONNECT, session taken over", V5, b"\xe0\x02\x8e\0", PROTOCOL),
    ("DISCONNECT, not authorized", V5, b"\xe0\x01\x87", PROTOCOL),
    ("AUTH", V5, b"\xf0\x06\x18\x04\x15\0\x01m", OK),
    ("AUTH, empty", V5, b"\xf0\0", PROTOCOL),
    ("AUTH, success", V5, b"\xf0\x06\0\x04\x15\0\x01m", PROTOCOL),
    ("AUTH, unknown reason", V5, b"\xf0\x06\x17\x04\x15\0\x01m", MALFORMED),
    ("AUTH, reserved flags", V5, b"\xf1\x06\x18\x04\x15\0\x01m", MALFORMED),
    ("AUTH, data without method", V5, b"\xf0\x06\x18\x04\x16\0\x01d", PROTOCOL),
    ("AUTH, 3.1.1", V3_1_1, b"\xf0\0", MALFORMED),
    ("packet type 0", V5, b"\0\0", MALFORMED),
    ("CONNACK from a client", V5, b"\x20\x03\0\0\0", PROTOCOL),
    ("SUBACK from a client", V5, b"\x90\x04\0\x0a\0\0", PROTOCOL),
    ("UNSUBACK from a client", V5, b"\xb0\x04\0\x0a\0\0", PROTOCOL),
    ("PINGRESP from a client", V3_1_1, b"\xd0\0", PROTOCOL),
];

pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    [CONNECTS, PUBLISHES, ACKS, SUBSCRIBES, OTHERS].into_iter().flatten()
}
