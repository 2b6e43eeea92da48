//! The index: a keyspace of the same database, so that blocks are committed with the state.
//!
//! Key: partition and first offset, both big endian, so that the blocks of one partition follow each other. Value: one
//! past the last offset (8 bytes, little endian), then the block.

use crate::log::ReadError;
use crate::log::index::{BLOCKS_BYTES_MAX, Index, IndexWrite};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch};
use futures::future::BoxFuture;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_core::partition::{Offset, Partition};
use tidemill_core::queue::index::Block;

const KEYSPACE: &str = "index";

/// What the committer has.
pub(super) struct IndexKeyspace {
    keyspace: Keyspace,
    reader: Arc<IndexReader>,
    /// No block begins below, as far as this process knows: deleted keys are not looked at again.
    trimmed: BTreeMap<Partition, Offset>,
}

/// What others read, until the store is closed.
pub(super) struct IndexReader {
    keyspace: RwLock<Option<Keyspace>>,
}

impl IndexKeyspace {
    pub(super) fn open(database: &Database) -> Result<(Self, Arc<IndexReader>), fjall::Error> {
        let keyspace = database.keyspace(KEYSPACE, KeyspaceCreateOptions::default)?;
        let reader = Arc::new(IndexReader { keyspace: RwLock::new(Some(keyspace.clone())) });
        Ok((Self { keyspace, reader: Arc::clone(&reader), trimmed: BTreeMap::new() }, reader))
    }

    /// Nobody reads any more.
    pub(super) fn close(&self) {
        *self.reader.keyspace.write() = None;
    }

    /// Adds the changes to `batch`, a key at most once.
    pub(super) fn write(
        &mut self,
        writes: Vec<IndexWrite>,
        batch: &mut OwnedWriteBatch,
    ) -> Result<(), fjall::Error> {
        let mut added: BTreeMap<(Partition, Offset), Block> = BTreeMap::new();
        for write in writes {
            match write {
                IndexWrite::Block { partition, block } => {
                    added.insert((partition, block.first), block);
                }
                IndexWrite::Trim { partition, floor } => {
                    added.retain(|(of, _), block| *of != partition || block.end > floor);
                    self.trim(partition, floor, batch)?;
                }
            }
        }
        for ((partition, first), block) in added {
            batch.insert(&self.keyspace, stored_key(partition, first), encode(&block).as_ref());
        }
        Ok(())
    }

    fn trim(
        &mut self,
        partition: Partition,
        floor: Offset,
        batch: &mut OwnedWriteBatch,
    ) -> Result<(), fjall::Error> {
        let from = self.trimmed.entry(partition).or_default();
        for entry in self.keyspace.range(stored_key(partition, *from)..stored_key(partition, floor)) {
            let (key, value) = entry.into_inner()?;
            if let Some(block) = decode(&key, &value).filter(|block| block.end > floor) {
                *from = block.first;
                return Ok(());
            }
            batch.remove(&self.keyspace, key);
        }
        *from = floor.max(*from);
        Ok(())
    }
}

impl IndexReader {
    fn read(&self, partition: Partition, from: Offset) -> Result<Vec<Block>, ReadError> {
        let open = self.keyspace.read();
        let keyspace = open.as_ref().ok_or(ReadError::Closed)?;
        let failed = |error: fjall::Error| ReadError::Unavailable {
            partition: partition.0,
            reason: format!("index: {error}"),
        };
        let mut blocks = Vec::new();
        // One that begins before may reach beyond.
        let before = keyspace.range(stored_key(partition, 0)..=stored_key(partition, from)).next_back();
        let behind = keyspace
            .range(stored_key(partition, from.saturating_add(1))..=stored_key(partition, Offset::MAX));
        let mut bytes = 0;
        for entry in before.into_iter().chain(behind) {
            let (key, value) = entry.into_inner().map_err(failed)?;
            if let Some(block) = decode(&key, &value).filter(|block| block.end > from) {
                bytes += block.bytes.len();
                blocks.push(block);
            }
            if bytes >= BLOCKS_BYTES_MAX {
                break;
            }
        }
        Ok(blocks)
    }
}

/// The part of [`IndexReader`] that reads in a thread of its own.
impl Index for IndexReader {
    fn blocks(
        self: Arc<Self>,
        partition: Partition,
        from: Offset,
    ) -> BoxFuture<'static, Result<Vec<Block>, ReadError>> {
        Box::pin(async move {
            let reading = tokio::task::spawn_blocking(move || self.read(partition, from));
            reading.await.unwrap_or(Err(ReadError::Closed))
        })
    }
}

fn stored_key(partition: Partition, first: Offset) -> [u8; 10] {
    let mut key = [0; 10];
    let (front, back) = key.split_at_mut(2);
    front.copy_from_slice(&partition.0.to_be_bytes());
    back.copy_from_slice(&first.to_be_bytes());
    key
}

fn encode(block: &Block) -> Bytes {
    let mut value = BytesMut::with_capacity(8 + block.bytes.len());
    value.put_u64_le(block.end);
    value.put_slice(&block.bytes);
    value.freeze()
}

/// `None` if it is no entry of this format: then nothing speaks for its offsets.
fn decode(key: &[u8], mut value: &[u8]) -> Option<Block> {
    let first = Offset::from_be_bytes(key.get(2..)?.try_into().ok()?);
    let end = value.try_get_u64_le().ok()?;
    Some(Block { first, end, bytes: Bytes::copy_from_slice(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_1_keeps_its_bytes() {
        let block = Block { first: 0x0102, end: 0x0203, bytes: Bytes::from_static(b"b") };
        let (key, value) = (stored_key(Partition(7), block.first), encode(&block));

        assert_eq!(key, [0, 7, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(value[..], [3, 2, 0, 0, 0, 0, 0, 0, b'b']);
        assert_eq!(decode(&key, &value), Some(block));
        assert_eq!(decode(&key, &value[..7]), None);
    }
}
