//! What a program is given.

use std::sync::Arc;

use crate::client::SimTransport;
use crate::env::SimEnv;
use crate::history::NodeRecorder;
use crate::index_server::SimIndex;
use crate::network::Host;

/// One life of a process: what a program is given. Everything made from it is inert once the process is dead.
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) host: Host,
}

impl Node {
    /// Kafka, as this process reaches it.
    pub fn transport(&self) -> SimTransport {
        SimTransport::new(self.host.clone())
    }

    /// Time, tasks and randomness of this process.
    pub fn env(&self) -> SimEnv {
        SimEnv { host: self.host.clone() }
    }

    /// The search backend, as this process reaches it.
    pub fn index(&self) -> SimIndex {
        SimIndex::new(self.host.clone())
    }

    /// Name of the node.
    pub fn name(&self) -> &Arc<str> {
        &self.host.life.node
    }

    /// Which life of the node this is, from 1.
    pub fn incarnation(&self) -> u32 {
        self.host.life.incarnation
    }

    /// The history, as this process writes it.
    pub fn recorder(&self) -> NodeRecorder {
        let recorder = self.host.shared.lock().recorder.clone();
        recorder.node(self.name().clone(), self.incarnation())
    }

    /// Completes when the world asks this process to end.
    pub async fn stopping(&self) {
        self.host.life.stopping().await;
    }

    /// Whether the world has asked this process to end.
    pub fn is_stopping(&self) -> bool {
        self.host.life.is_stopping()
    }
}
