//! What the operator reaches beside the Kubernetes API.

pub mod authority;
pub mod kafka;
