//! Links that are cut or slow, and topics that are slow, each for its time. Windows may overlap: what a link suffers is
//! the union of what is open.

use std::collections::BTreeSet;
use std::time::Duration;

use seriatim_core::env::Instant;
use seriatim_sim::World;

/// A time in which a node's link, or the topic of events, suffers.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// The node; `None` is the topic of events, which can only be slow.
    pub(super) node: Option<String>,
    /// Requests are lost.
    pub(super) out: bool,
    /// Answers are lost.
    pub(super) into: bool,
    /// Added to each direction.
    pub(super) extra: Duration,
    pub(super) until: Instant,
}

/// The open windows of one run.
#[derive(Debug)]
pub(super) struct Links {
    open: Vec<Window>,
    /// How the names of the topics of events begin.
    events: String,
}

impl Links {
    pub(super) fn new(events: String) -> Self {
        Links { open: Vec::new(), events }
    }

    pub(super) fn open(&mut self, world: &World, window: Window) {
        let node = window.node.clone();
        self.open.push(window);
        self.apply(world, node.as_deref());
    }

    /// Closes the windows that are over. Whether none is left.
    pub(super) fn close_due(&mut self, world: &World, now: Instant) -> bool {
        let over: BTreeSet<Option<String>> =
            self.open.extract_if(.., |one| one.until <= now).map(|one| one.node).collect();
        for node in over {
            self.apply(world, node.as_deref());
        }
        self.open.is_empty()
    }

    /// When the next window is over.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.open.iter().map(|window| window.until).min()
    }

    pub(super) fn close_all(&mut self, world: &World) {
        self.open.iter_mut().for_each(|window| window.until = Instant::default());
        self.close_due(world, world.now());
    }

    fn apply(&self, world: &World, node: Option<&str>) {
        let own = self.open.iter().filter(|window| window.node.as_deref() == node);
        let (out, into, extra) = own.fold((false, false, Duration::ZERO), |(out, into, extra), one| {
            (out || one.out, into || one.into, extra.max(one.extra))
        });
        match node {
            Some(node) => {
                world.cut_link(node, out, into);
                world.slow_link(node, extra);
            }
            None => world.slow_topics(&self.events, extra),
        }
    }
}
