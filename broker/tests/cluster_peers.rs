//! Brokers linked over real TLS connections on loopback, with fakes for membership, router, registry and owner.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "cluster_peers/directory.rs"]
mod directory;
#[path = "cluster_peers/forwards.rs"]
mod forwards;
#[path = "cluster_peers/network.rs"]
mod network;
#[path = "cluster_peers/node.rs"]
mod node;
#[path = "cluster_peers/routes.rs"]
mod routes;
#[path = "cluster_peers/security.rs"]
mod security;
#[path = "cluster_peers/surroundings.rs"]
mod surroundings;
