//! The index beside the log: blocks that say which records wait for which queue, so that a queue behind the head reads
//! its own records only. Written with the state, in the same step; read when a queue needs it.

use super::ReadError;
use futures::future::BoxFuture;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::queue::index::Block;

/// Bytes of blocks after which [`Index::blocks`] answers no further one (one block may be larger).
pub const BLOCKS_BYTES_MAX: usize = 1 << 20;

/// One change of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexWrite {
    /// Adds a block. Blocks of one partition come in order and do not overlap.
    Block {
        /// Whose records it lists.
        partition: Partition,
        /// The block.
        block: Block,
    },
    /// Forgets the blocks that end at or below `floor`.
    Trim {
        /// Whose index it is.
        partition: Partition,
        /// No offset below is needed.
        floor: Offset,
    },
}

/// The stored blocks of all partitions.
pub trait Index: Send + Sync + 'static {
    /// Blocks of `partition` that end above `from`, in order, about [`BLOCKS_BYTES_MAX`] of them; at least one if there is
    /// one. Offsets between two blocks are spoken for by none.
    fn blocks(
        self: Arc<Self>,
        partition: Partition,
        from: Offset,
    ) -> BoxFuture<'static, Result<Vec<Block>, ReadError>>;
}
