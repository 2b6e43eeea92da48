//! Questions on their way to peers.

use crate::cluster::peer::link::Link;
use crate::cluster::wire::Body;
use bytestring::ByteString;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::oneshot;

#[derive(Debug)]
struct Waiting {
    link: u64,
    /// Who attaches: a grant that comes too late must be given back.
    attaching: Option<ByteString>,
    reply: oneshot::Sender<Body>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    waiting: HashMap<u64, Waiting>,
}

/// Requests without a reply yet. Bounded by the connections and sessions that ask.
#[derive(Debug, Default)]
pub(super) struct Requests {
    state: Mutex<State>,
}

impl Requests {
    /// Numbers a request to be sent over `link`. The receiver fails when the link ends.
    pub(super) fn enter(&self, link: &Arc<Link>) -> (u64, oneshot::Receiver<Body>) {
        self.enter_for(link, None)
    }

    /// As [`Self::enter`], for an attach of a client.
    pub(super) fn enter_for(
        &self,
        link: &Arc<Link>,
        attaching: Option<ByteString>,
    ) -> (u64, oneshot::Receiver<Body>) {
        let (reply, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.waiting.insert(number, Waiting { link: link.number(), attaching, reply });
        (number, receiver)
    }

    /// Takes a reply. One that nobody waits for, or that came over another link, is passed over; answers who attached,
    /// if that client has given up meanwhile.
    pub(super) fn answer(&self, link: &Arc<Link>, number: u64, body: Body) -> Option<ByteString> {
        let mut state = self.state.lock();
        if state.waiting.get(&number).is_some_and(|waiting| waiting.link == link.number())
            && let Some(waiting) = state.waiting.remove(&number)
        {
            // Fails only when the asker has given up.
            return waiting.reply.send(body).err().and(waiting.attaching);
        }
        None
    }

    /// Forgets a request that was not sent.
    pub(super) fn forget(&self, number: u64) {
        self.state.lock().waiting.remove(&number);
    }

    /// The asker has given up. An attach is kept until its link ends: its grant may still come.
    pub(super) fn give_up(&self, number: u64) {
        let mut state = self.state.lock();
        if state.waiting.get(&number).is_some_and(|waiting| waiting.attaching.is_none()) {
            state.waiting.remove(&number);
        }
    }

    /// Fails all requests over a link that has ended.
    pub(super) fn fail(&self, link: &Arc<Link>) {
        let number = link.number();
        self.state.lock().waiting.retain(|_, waiting| waiting.link != number);
    }
}
