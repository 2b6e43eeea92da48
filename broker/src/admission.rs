//! How many connections a port serves of peers that have not proved who they are.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Bounds on the connections of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// In all.
    pub total: usize,
    /// From one address, so that nobody takes all of them.
    pub per_source: usize,
}

/// Counts the connections of one port. Share it behind an `Arc`.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// One place among the connections, given back when dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    source: IpAddr,
}

impl Admission {
    /// Nobody is here yet.
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    /// Takes a place for a connection from `source`; `None` when there is none: close it.
    #[must_use]
    pub fn admit(self: &Arc<Self>, source: IpAddr) -> Option<Admitted> {
        let mut counts = self.counts.lock();
        let of_source = counts.by_source.get(&source).copied().unwrap_or(0);
        if counts.total >= self.limits.total || of_source >= self.limits.per_source {
            return None;
        }
        counts.total += 1;
        counts.by_source.insert(source, of_source + 1);
        drop(counts);
        Some(Admitted { admission: Arc::clone(self), source })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self.admission.counts.lock();
        counts.total -= 1;
        if let Some(of_source) = counts.by_source.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                counts.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_never_takes_all_places_and_what_is_dropped_is_free_again() {
        let admission = Admission::new(AdmissionLimits { total: 3, per_source: 2 });
        let sources = [1, 2, 3].map(|number| IpAddr::from([10, 0, 0, number]));
        let first: Vec<_> = (0..2).filter_map(|_| admission.admit(sources[0])).collect();
        assert_eq!(first.len(), 2);

        assert!(admission.admit(sources[0]).is_none());
        let second = admission.admit(sources[1]);
        assert!(second.is_some());
        assert!(admission.admit(sources[2]).is_none(), "all places are taken");

        drop(first);
        assert!(admission.admit(sources[2]).is_some());
        drop(second);
        assert_eq!(admission.counts.lock().total, 0);
        assert!(admission.counts.lock().by_source.is_empty());
    }
}
