//! Reason codes (MQTT 5.0 section 2.4).

use std::fmt;

/// A reason code as on the wire. Codes from 0x80 are failures.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReasonCode(pub u8);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl ReasonCode {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// The code's name in the specification; `unknown` for a number it does not list.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "unknown",
                }
            }
        }
    };
}

codes! {
    /// Success, normal disconnection, granted QoS 0.
    SUCCESS = 0x00, "success";
    /// Granted QoS 1.
    GRANTED_QOS_1 = 0x01, "granted QoS 1";
    /// Granted QoS 2.
    GRANTED_QOS_2 = 0x02, "granted QoS 2";
    /// The client wants its will published.
    DISCONNECT_WITH_WILL = 0x04, "disconnect with will message";
    /// Accepted, but nobody subscribed.
    NO_MATCHING_SUBSCRIBERS = 0x10, "no matching subscribers";
    /// There was no such subscription.
    NO_SUBSCRIPTION_EXISTED = 0x11, "no subscription existed";
    /// Extended authentication goes on.
    CONTINUE_AUTHENTICATION = 0x18, "continue authentication";
    /// The client starts to authenticate again.
    REAUTHENTICATE = 0x19, "re-authenticate";
    /// No more specific code fits.
    UNSPECIFIED_ERROR = 0x80, "unspecified error";
    /// The bytes are no packet.
    MALFORMED_PACKET = 0x81, "malformed packet";
    /// The packet may not come now or like this.
    PROTOCOL_ERROR = 0x82, "protocol error";
    /// Valid, but this broker does not do it.
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83, "implementation specific error";
    /// The protocol version is not spoken here.
    UNSUPPORTED_PROTOCOL_VERSION = 0x84, "unsupported protocol version";
    /// The client id is not allowed.
    CLIENT_IDENTIFIER_NOT_VALID = 0x85, "client identifier not valid";
    /// Wrong credentials.
    BAD_USER_NAME_OR_PASSWORD = 0x86, "bad user name or password";
    /// Not allowed to do this.
    NOT_AUTHORIZED = 0x87, "not authorized";
    /// The broker cannot serve now.
    SERVER_UNAVAILABLE = 0x88, "server unavailable";
    /// The broker is busy.
    SERVER_BUSY = 0x89, "server busy";
    /// The client is banned.
    BANNED = 0x8A, "banned";
    /// The broker stops.
    SERVER_SHUTTING_DOWN = 0x8B, "server shutting down";
    /// The authentication method is not known.
    BAD_AUTHENTICATION_METHOD = 0x8C, "bad authentication method";
    /// Nothing came for 1.5 x keep alive.
    KEEP_ALIVE_TIMEOUT = 0x8D, "keep alive timeout";
    /// Another connection has the client id now.
    SESSION_TAKEN_OVER = 0x8E, "session taken over";
    /// The filter is malformed or not accepted.
    TOPIC_FILTER_INVALID = 0x8F, "topic filter invalid";
    /// The topic name is malformed or not accepted.
    TOPIC_NAME_INVALID = 0x90, "topic name invalid";
    /// The packet id is in use.
    PACKET_IDENTIFIER_IN_USE = 0x91, "packet identifier in use";
    /// The packet id is not known.
    PACKET_IDENTIFIER_NOT_FOUND = 0x92, "packet identifier not found";
    /// More unacknowledged publishes than the receive maximum.
    RECEIVE_MAXIMUM_EXCEEDED = 0x93, "receive maximum exceeded";
    /// The topic alias is 0 or above the maximum.
    TOPIC_ALIAS_INVALID = 0x94, "topic alias invalid";
    /// The packet is larger than the maximum.
    PACKET_TOO_LARGE = 0x95, "packet too large";
    /// The client sends too fast.
    MESSAGE_RATE_TOO_HIGH = 0x96, "message rate too high";
    /// A bound was reached.
    QUOTA_EXCEEDED = 0x97, "quota exceeded";
    /// An administrator closed it.
    ADMINISTRATIVE_ACTION = 0x98, "administrative action";
    /// The payload is not what its format indicator says.
    PAYLOAD_FORMAT_INVALID = 0x99, "payload format invalid";
    /// Retained messages are not served.
    RETAIN_NOT_SUPPORTED = 0x9A, "retain not supported";
    /// The QoS is above the maximum.
    QOS_NOT_SUPPORTED = 0x9B, "QoS not supported";
    /// Use another server for now.
    USE_ANOTHER_SERVER = 0x9C, "use another server";
    /// Use another server from now on.
    SERVER_MOVED = 0x9D, "server moved";
    /// Shared subscriptions are not served.
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E, "shared subscriptions not supported";
    /// Too many connections in this time.
    CONNECTION_RATE_EXCEEDED = 0x9F, "connection rate exceeded";
    /// The longest connect time is over.
    MAXIMUM_CONNECT_TIME = 0xA0, "maximum connect time";
    /// Subscription identifiers are not served.
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1, "subscription identifiers not supported";
    /// Wildcards are not served.
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2, "wildcard subscriptions not supported";
}

impl ReasonCode {
    /// Whether the code says that something failed.
    #[must_use]
    pub fn is_failure(self) -> bool {
        self.0 >= 0x80
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#04x} {}", self.0, self.name())
    }
}

impl fmt::Debug for ReasonCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}
