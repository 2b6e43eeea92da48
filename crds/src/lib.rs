//! The custom resource types.
