//! Chance that can be repeated.

/// Numbers from a seed (xorshift64).
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// The numbers of `seed`; neighbouring seeds have nothing in common.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % bound
    }

    /// One of `choices`.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap_or(0)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// 0, 1 or 2.
    pub fn qos(&mut self) -> u8 {
        u8::try_from(self.below(3)).unwrap_or(0)
    }
}
