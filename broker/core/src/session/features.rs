//! What a broker serves of MQTT. CONNACK says so, and what is not served is refused with its own reason code.

/// What is served beyond QoS 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// QoS 2 in both directions; else CONNACK says maximum QoS 1, a publish is refused with 0x9B and a subscription
    /// gets QoS 1.
    pub exactly_once: bool,
    /// Retained messages; else CONNACK says so and a retained publish or will is refused with 0x9A.
    pub retained: bool,
    /// Shared subscriptions; else CONNACK says so and they are answered with 0x9E.
    pub shared: bool,
}

impl Features {
    /// A broker whose clients may be at other brokers: only what is right across brokers.
    pub const CLUSTER: Self = Self { exactly_once: false, retained: false, shared: false };
    /// A broker that has all clients itself.
    pub const STANDALONE: Self = Self { exactly_once: false, retained: true, shared: false };
}
