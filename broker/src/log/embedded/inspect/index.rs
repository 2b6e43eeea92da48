//! Compares the index of a sealed segment with the segment.

use super::super::format::{IndexHeader, IndexRun};
use super::contents::{Contents, Entry};
use super::reader;
use std::fs::File;
use std::io::{self, Read};

/// What the index says otherwise than its segment. It may name records where the segment is damaged: there it is the only
/// one that knows.
pub(super) fn compare(index: &File, front: &IndexHeader, contents: &Contents) -> io::Result<Option<String>> {
    let mut is_named = vec![false; contents.entries.len()];
    for run in &front.runs {
        let IndexRun { partition, kind, first, begin, length, .. } = *run;
        let place = format!("the run of partition {} from offset {first}", partition.0);
        let mut bytes = Vec::new();
        reader(index, begin).take(length.into()).read_to_end(&mut bytes)?;
        let positions = match run.positions(&bytes) {
            Ok(positions) => positions,
            Err(fault) => return Ok(Some(format!("at byte {begin}, {place}: {fault}"))),
        };
        for (offset, position) in (first..).zip(positions) {
            let position = u64::from(position);
            let named = Entry { position, partition, kind, offset };
            match contents.entries.binary_search_by_key(&position, |entry| entry.position) {
                Ok(found) if contents.entries[found] == named => is_named[found] = true,
                Err(_) if contents.is_damaged_at(position) => {}
                Ok(_) | Err(_) => {
                    return Ok(Some(format!(
                        "{place}: it has offset {offset} at byte {position}, the segment has not"
                    )));
                }
            }
        }
    }
    let left_out = is_named.iter().position(|is_named| !is_named).map(|index| contents.entries[index]);
    Ok(left_out.map(|Entry { partition, offset, position, .. }| {
        format!("it leaves out offset {offset} of partition {} at byte {position}", partition.0)
    }))
}
