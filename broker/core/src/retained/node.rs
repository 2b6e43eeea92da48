//! The tree of topics, one node for each beginning of a topic.

use super::size::level_bytes;
use crate::message::Message;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Up to here children are a sorted list, which is much smaller than a map of few.
const FEW_MAX: usize = 16;

/// At this size a map becomes a list again; below [`FEW_MAX`], so that one child at the edge does not convert each time.
const FEW_AGAIN: usize = 8;

/// What is retained below one beginning of a topic. Except for the root no node is empty.
///
/// A node's depth is at most `LEVELS_MAX`, so the recursions below are bounded.
#[derive(Debug, Default)]
pub(super) struct Node {
    message: Option<Arc<Message>>,
    children: Children,
}

/// Children in the order of their names.
#[derive(Debug)]
#[allow(
    clippy::box_collection,
    reason = "a map in line would make every node larger that has a list or nothing"
)]
enum Children {
    /// Up to [`FEW_MAX`].
    Few(Vec<(Box<str>, Node)>),
    Many(Box<BTreeMap<Box<str>, Node>>),
}

/// From where on a subtree is searched.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// From its first node on.
    Here,
    /// Its first node is done, and everything before these levels below it.
    Below(&'a str),
}

/// One call of a search.
pub(super) struct Walk<'a, V> {
    visits_left: usize,
    now_ms: u64,
    visit: V,
    /// Where it stopped, the last level first.
    stopped_at: Vec<&'a str>,
}

impl<'a, V: FnMut(&'a Arc<Message>) -> ControlFlow<()>> Walk<'a, V> {
    pub(super) fn new(visits_max: usize, now_ms: u64, visit: V) -> Self {
        // The root is visited, too, and is no level.
        Self { visits_left: visits_max.max(1) + 1, now_ms, visit, stopped_at: Vec::new() }
    }

    /// The levels of the first node that was not visited.
    pub(super) fn stopped_at(mut self) -> Box<str> {
        self.stopped_at.reverse();
        self.stopped_at.join("/").into()
    }
}

impl Node {
    /// The message of the topic that goes on with `levels`, and what the levels would cost that are not there yet.
    pub(super) fn find(&self, levels: &str) -> (Option<&Arc<Message>>, usize) {
        let mut node = self;
        let mut rest = Some(levels);
        while let Some(levels) = rest {
            let (level, next) = split_level(levels);
            match node.children.get(level) {
                Some(child) => node = child,
                None => return (None, levels.split('/').map(level_bytes).sum()),
            }
            rest = next;
        }
        (node.message.as_ref(), 0)
    }

    /// Sets the message of the topic that goes on with `levels`; the former one.
    pub(super) fn insert(&mut self, levels: &str, message: Arc<Message>) -> Option<Arc<Message>> {
        let mut node = self;
        for level in levels.split('/') {
            node = node.children.get_or_insert(level);
        }
        node.message.replace(message)
    }

    /// Takes the message of the topic that goes on with `levels`, and every node that is empty then; the message, and
    /// what these nodes cost.
    pub(super) fn remove(&mut self, levels: &str) -> Option<(Arc<Message>, usize)> {
        let (level, next) = split_level(levels);
        let child = self.children.get_mut(level)?;
        let (message, mut freed) = match next {
            Some(next) => child.remove(next)?,
            None => (child.message.take()?, 0),
        };
        if child.message.is_none() && child.children.is_empty() {
            self.children.remove(level);
            freed += level_bytes(level);
        }
        Some((message, freed))
    }

    /// Visits what matches `pattern`, the rest of the filter behind this node's beginning, in order from `start` on.
    /// Breaks at the first node that was not visited.
    pub(super) fn search<'a, V>(
        &'a self,
        pattern: Option<&str>,
        start: Start<'_>,
        walk: &mut Walk<'a, V>,
    ) -> ControlFlow<()>
    where
        V: FnMut(&'a Arc<Message>) -> ControlFlow<()>,
    {
        let is_match = pattern.is_none_or(|pattern| pattern == "#");
        match start {
            Start::Here => self.visit(is_match, walk)?,
            Start::Below(_) => {}
        }
        let Some(pattern) = pattern else { return ControlFlow::Continue(()) };
        let (level, next) = split_level(pattern);
        let below = if level == "#" { Some("#") } else { next };
        match level {
            "#" | "+" => self
                .children
                .try_for_each_from(start.level(), |name, child| child.search_child(name, below, start, walk)),
            name => match self.children.entry(name) {
                Some((name, child)) if start.level().is_none_or(|level| level <= name) => {
                    child.search_child(name, below, start, walk)
                }
                Some(_) | None => ControlFlow::Continue(()),
            },
        }
    }

    fn search_child<'a, V>(
        &'a self,
        name: &'a str,
        pattern: Option<&str>,
        start: Start<'_>,
        walk: &mut Walk<'a, V>,
    ) -> ControlFlow<()>
    where
        V: FnMut(&'a Arc<Message>) -> ControlFlow<()>,
    {
        let outcome = self.search(pattern, start.of_child(name), walk);
        if outcome.is_break() {
            walk.stopped_at.push(name);
        }
        outcome
    }

    fn visit<'a, V>(&'a self, is_match: bool, walk: &mut Walk<'a, V>) -> ControlFlow<()>
    where
        V: FnMut(&'a Arc<Message>) -> ControlFlow<()>,
    {
        if walk.visits_left == 0 {
            return ControlFlow::Break(());
        }
        if let Some(message) = &self.message
            && is_match
            && !message.is_expired(walk.now_ms)
        {
            (walk.visit)(message)?;
        }
        walk.visits_left -= 1;
        ControlFlow::Continue(())
    }
}

impl<'a> Start<'a> {
    /// The first level below that is not done.
    fn level(self) -> Option<&'a str> {
        match self {
            Self::Here => None,
            Self::Below(levels) => Some(split_level(levels).0),
        }
    }

    /// For a child whose name is at [`Start::level`] or behind it.
    fn of_child(self, name: &str) -> Self {
        let Self::Below(levels) = self else { return Self::Here };
        let (level, next) = split_level(levels);
        match next {
            Some(next) if level == name => Self::Below(next),
            Some(_) | None => Self::Here,
        }
    }
}

impl Default for Children {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Children {
    fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.is_empty(),
            Self::Many(many) => many.is_empty(),
        }
    }

    fn get(&self, name: &str) -> Option<&Node> {
        self.entry(name).map(|(_, node)| node)
    }

    fn entry(&self, name: &str) -> Option<(&str, &Node)> {
        match self {
            Self::Few(few) => {
                let (name, node) = few.get(place_of(few, name).ok()?)?;
                Some((name, node))
            }
            Self::Many(many) => many.get_key_value(name).map(|(name, node)| (&**name, node)),
        }
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Node> {
        match self {
            Self::Few(few) => {
                let place = place_of(few, name).ok()?;
                few.get_mut(place).map(|(_, node)| node)
            }
            Self::Many(many) => many.get_mut(name),
        }
    }

    fn get_or_insert(&mut self, name: &str) -> &mut Node {
        if let Self::Few(few) = self
            && few.len() >= FEW_MAX
            && place_of(few, name).is_err()
        {
            *self = Self::Many(Box::new(std::mem::take(few).into_iter().collect()));
        }
        match self {
            Self::Few(few) => {
                let place = place_of(few, name).unwrap_or_else(|place| {
                    if few.len() == few.capacity() {
                        // A list of one is by far the most frequent, and a vector would begin with four.
                        few.reserve_exact(few.len().max(1));
                    }
                    few.insert(place, (name.into(), Node::default()));
                    place
                });
                &mut few[place].1
            }
            Self::Many(many) => many.entry(name.into()).or_default(),
        }
    }

    fn remove(&mut self, name: &str) {
        match self {
            Self::Few(few) => {
                if let Ok(place) = place_of(few, name) {
                    few.remove(place);
                    if few.len() < few.capacity() / 4 {
                        few.shrink_to(few.len() * 2);
                    }
                }
            }
            Self::Many(many) => {
                many.remove(name);
                if many.len() <= FEW_AGAIN {
                    *self = Self::Few(std::mem::take(&mut **many).into_iter().collect());
                }
            }
        }
    }

    /// Calls `each` for every child whose name is not before `level`, in order, until it breaks.
    fn try_for_each_from<'a>(
        &'a self,
        level: Option<&str>,
        mut each: impl FnMut(&'a str, &'a Node) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Self::Few(few) => {
                let first = level.map_or(0, |level| few.partition_point(|(name, _)| &**name < level));
                few.iter().skip(first).try_for_each(|(name, node)| each(name, node))
            }
            Self::Many(many) => {
                let from = level.map_or(Bound::Unbounded, Bound::Included);
                let mut children = many.range::<str, _>((from, Bound::Unbounded));
                children.try_for_each(|(name, node)| each(name, node))
            }
        }
    }
}

fn place_of(few: &[(Box<str>, Node)], name: &str) -> Result<usize, usize> {
    few.binary_search_by(|(known, _)| (**known).cmp(name))
}

fn split_level(levels: &str) -> (&str, Option<&str>) {
    levels.split_once('/').map_or((levels, None), |(level, next)| (level, Some(next)))
}
