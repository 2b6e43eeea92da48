//! What a reason code means here, in words: the reason strings of 5.0.

use super::ReasonCode;
use bytestring::ByteString;

/// Which packet the words stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The answer to CONNECT.
    ConnAck,
    /// PUBACK or PUBREC.
    Publish,
    /// The answer to SUBSCRIBE; the words are about one of its entries.
    SubAck,
    /// The broker ends the connection.
    Disconnect,
}

/// The reason string for `reason`; `None` when it is no failure, or when nothing is known beyond the code's name.
#[must_use]
pub fn reason_string(answer: Answer, reason: ReasonCode) -> Option<ByteString> {
    let words = match answer {
        Answer::ConnAck => of_connack(reason),
        Answer::Publish => of_publish(reason),
        Answer::SubAck => of_suback(reason),
        Answer::Disconnect => of_disconnect(reason),
    };
    words.map(ByteString::from_static)
}

fn of_connack(reason: ReasonCode) -> Option<&'static str> {
    Some(match reason {
        ReasonCode::NOT_AUTHORIZED => "the session belongs to another user",
        ReasonCode::SERVER_UNAVAILABLE => "the broker cannot serve this client id now, try again",
        ReasonCode::SERVER_BUSY => "another connection of this client id came first",
        ReasonCode::BAD_AUTHENTICATION_METHOD => "extended authentication is not served",
        ReasonCode::TOPIC_NAME_INVALID => "the will topic is $SYS or below it",
        ReasonCode::QUOTA_EXCEEDED => {
            "the client id is too long for a persistent session, or the will too large"
        }
        ReasonCode::PAYLOAD_FORMAT_INVALID => "the will says that it is UTF-8, and is not",
        ReasonCode::RETAIN_NOT_SUPPORTED => "retained wills are not served",
        ReasonCode::QOS_NOT_SUPPORTED => "wills at QoS 2 are not served",
        _ => return None,
    })
}

fn of_publish(reason: ReasonCode) -> Option<&'static str> {
    Some(match reason {
        ReasonCode::TOPIC_NAME_INVALID => "the topic is $SYS or below it, or has more than 128 levels",
        ReasonCode::PAYLOAD_FORMAT_INVALID => "the payload says that it is UTF-8, and is not",
        ReasonCode::QUOTA_EXCEEDED => "a limit of the broker is reached",
        _ => return None,
    })
}

fn of_suback(reason: ReasonCode) -> Option<&'static str> {
    Some(match reason {
        ReasonCode::UNSPECIFIED_ERROR => "not every broker could confirm the subscription in time",
        ReasonCode::NOT_AUTHORIZED => "the session belongs to another user",
        ReasonCode::TOPIC_FILTER_INVALID => "the filter has more than 128 levels",
        ReasonCode::QUOTA_EXCEEDED => {
            "the session has as many subscriptions as it may, or the filter is too long"
        }
        ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED => "shared subscriptions are not served",
        _ => return None,
    })
}

fn of_disconnect(reason: ReasonCode) -> Option<&'static str> {
    Some(match reason {
        ReasonCode::UNSPECIFIED_ERROR => "the broker cannot go on with this connection",
        ReasonCode::PROTOCOL_ERROR => "the packet may not come now, or not like this",
        ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR => "messages from another broker may have been lost",
        ReasonCode::NOT_AUTHORIZED => "the session belongs to another user",
        ReasonCode::SERVER_SHUTTING_DOWN => "the broker stops",
        ReasonCode::KEEP_ALIVE_TIMEOUT => "nothing came for one and a half times the keep alive",
        ReasonCode::SESSION_TAKEN_OVER => "a newer connection has this client id",
        ReasonCode::TOPIC_NAME_INVALID => "the topic is $SYS or below it, or has more than 128 levels",
        ReasonCode::RECEIVE_MAXIMUM_EXCEEDED => "more publishes than the receive maximum are unacknowledged",
        ReasonCode::TOPIC_ALIAS_INVALID => "the topic alias is above the maximum of CONNACK",
        ReasonCode::PACKET_TOO_LARGE => "an answer is larger than the client accepts",
        ReasonCode::QUOTA_EXCEEDED => {
            "a limit is reached: too slow for its messages, or too large for the log"
        }
        ReasonCode::PAYLOAD_FORMAT_INVALID => "the payload says that it is UTF-8, and is not",
        ReasonCode::RETAIN_NOT_SUPPORTED => "retained messages are not served",
        ReasonCode::QOS_NOT_SUPPORTED => "QoS 2 is not served",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_fail_needs_no_words_and_a_failure_has_those_of_its_packet() {
        for answer in [Answer::ConnAck, Answer::Publish, Answer::SubAck, Answer::Disconnect] {
            for code in 0..0x80 {
                assert_eq!(reason_string(answer, ReasonCode(code)), None);
            }
        }
        let words = |answer| reason_string(answer, ReasonCode::QUOTA_EXCEEDED).unwrap();
        assert_ne!(words(Answer::SubAck), words(Answer::Disconnect));
    }
}
