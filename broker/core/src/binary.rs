//! Reading and writing the versioned byte strings that are persisted: unsigned LEB128 numbers and length-prefixed
//! text. Every read is bounded by the input.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use bytestring::ByteString;

/// The bytes are not what the format says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end inside a field.
    #[error("bytes end inside {field}")]
    Truncated {
        /// The field that was read.
        field: &'static str,
    },
    /// A number or tag has no meaning in this version.
    #[error("{field} has the unknown value {value}")]
    Unknown {
        /// The field that was read.
        field: &'static str,
        /// What it held.
        value: u64,
    },
    /// Text is not UTF-8, or not a topic.
    #[error("{field} is not valid text")]
    Text {
        /// The field that was read.
        field: &'static str,
    },
    /// Bytes are left after the last field.
    #[error("{bytes} bytes left after the last field")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

/// Reads fields one after the other. Slices share the input's memory.
#[derive(Debug, Clone)]
pub struct Reader {
    input: Bytes,
}

impl Reader {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(input: Bytes) -> Self {
        Self { input }
    }

    /// One byte.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] at the end of the input, as for all fields.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, FormatError> {
        self.input.try_get_u8().map_err(|_| FormatError::Truncated { field })
    }

    /// Eight bytes, little endian.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`].
    pub fn u64(&mut self, field: &'static str) -> Result<u64, FormatError> {
        self.input.try_get_u64_le().map_err(|_| FormatError::Truncated { field })
    }

    /// Sixteen bytes, little endian.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`].
    pub fn u128(&mut self, field: &'static str) -> Result<u128, FormatError> {
        self.input.try_get_u128_le().map_err(|_| FormatError::Truncated { field })
    }

    /// A LEB128 number of at most ten bytes.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`], or [`FormatError::Unknown`] when it does not fit 64 bits.
    pub fn number(&mut self, field: &'static str) -> Result<u64, FormatError> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8(field)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(FormatError::Unknown { field, value: u64::MAX })
    }

    /// A number that must fit 32 bits.
    ///
    /// # Errors
    ///
    /// As [`Self::number`], and [`FormatError::Unknown`] when it is larger.
    pub fn number_u32(&mut self, field: &'static str) -> Result<u32, FormatError> {
        let value = self.number(field)?;
        u32::try_from(value).map_err(|_| FormatError::Unknown { field, value })
    }

    /// A number that must fit 16 bits.
    ///
    /// # Errors
    ///
    /// As [`Self::number`], and [`FormatError::Unknown`] when it is larger.
    pub fn number_u16(&mut self, field: &'static str) -> Result<u16, FormatError> {
        let value = self.number(field)?;
        u16::try_from(value).map_err(|_| FormatError::Unknown { field, value })
    }

    /// Length-prefixed bytes.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`].
    pub fn bytes(&mut self, field: &'static str) -> Result<Bytes, FormatError> {
        let length = self.number(field)?;
        match usize::try_from(length) {
            Ok(length) if length <= self.input.len() => Ok(self.input.split_to(length)),
            _ => Err(FormatError::Truncated { field }),
        }
    }

    /// Length-prefixed UTF-8.
    ///
    /// # Errors
    ///
    /// [`FormatError::Truncated`] or [`FormatError::Text`].
    pub fn text(&mut self, field: &'static str) -> Result<ByteString, FormatError> {
        ByteString::try_from(self.bytes(field)?).map_err(|_| FormatError::Text { field })
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.input.is_empty()
    }

    /// Ends the reading.
    ///
    /// # Errors
    ///
    /// [`FormatError::Trailing`] when bytes are left.
    pub fn finish(self) -> Result<(), FormatError> {
        if self.input.is_empty() { Ok(()) } else { Err(FormatError::Trailing { bytes: self.input.len() }) }
    }
}

/// Writes fields one after the other.
#[derive(Debug, Default)]
pub struct Writer {
    output: BytesMut,
}

impl Writer {
    /// Starts with the version byte of a format.
    #[must_use]
    pub fn versioned(version: u8, capacity: usize) -> Self {
        let mut writer = Self { output: BytesMut::with_capacity(capacity) };
        writer.u8(version);
        writer
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.output.put_u8(value);
    }

    /// Eight bytes, little endian.
    pub fn u64(&mut self, value: u64) {
        self.output.put_u64_le(value);
    }

    /// Sixteen bytes, little endian.
    pub fn u128(&mut self, value: u128) {
        self.output.put_u128_le(value);
    }

    /// A LEB128 number.
    pub fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            let low = u8::try_from(value & 0x7f).expect("seven bits fit a byte");
            self.u8(low | 0x80);
            value >>= 7;
        }
        self.u8(u8::try_from(value).expect("the loop left seven bits"));
    }

    /// Length-prefixed bytes.
    pub fn bytes(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.output.put_slice(value);
    }

    /// Length-prefixed text.
    pub fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    /// How many bytes were written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.output.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.output.is_empty()
    }

    /// What was written.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.output.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_written_is_read_again(numbers in proptest::collection::vec(any::<u64>(), 0..20), text in ".*") {
            let mut writer = Writer::versioned(1, 0);
            for number in &numbers {
                writer.number(*number);
            }
            writer.text(&text);

            let mut reader = Reader::new(writer.finish());
            prop_assert_eq!(reader.u8("version"), Ok(1));
            for number in &numbers {
                prop_assert_eq!(reader.number("number"), Ok(*number));
            }
            prop_assert_eq!(reader.text("text").unwrap(), text);
            prop_assert_eq!(reader.finish(), Ok(()));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = Reader::new(bytes.into());
            while !reader.is_empty() {
                if reader.text("text").is_err() {
                    let _ = reader.number("number");
                }
            }
        }
    }
}
