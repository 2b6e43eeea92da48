//! The operator, as a library for its binary and tests.
