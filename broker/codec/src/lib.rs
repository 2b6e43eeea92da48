//! The MQTT codec: bytes to the packets of `tidemill-core` and back, for MQTT 3.1, 3.1.1 and 5.0.
//!
//! A connection reads with a [`Codec`], which refuses every packet a client may not send; whoever writes to a client
//! uses its [`Encoder`], a few bytes to copy. PUBLISH and the short acknowledgements are written here; all other
//! packets go through `rmqtt-codec`, which only this crate names, with the checks it leaves out in front of it.

mod codec;
mod decode;
mod encode;
mod error;
mod will_expiry;
mod wire;

pub use codec::{Codec, DecodeLimits, SHARED_PAYLOAD_BYTES_MIN};
pub use encode::{Encoder, PublishParts};
pub use error::{DecodeError, EncodeError};
