//! The server's side.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use seriatim_core::env::Env;
use seriatim_core::index::memory::MemoryIndex;
use seriatim_core::index::{IndexOp, ItemOutcome};
use seriatim_core::stop::Stop;
use seriatim_sim::history::{NodeRecorder, What};
use seriatim_sim::recorded::index_write;
use tokio::net::{TcpListener, TcpStream};

use super::wire::{Answer, Request, Stored, receive, send};
use crate::drive::troubles::asks_to_be_refused;

/// Deletes are remembered for longer than any run.
const TOMBSTONE_RETENTION: Duration = Duration::from_secs(24 * 3_600);
/// Connections at a time: each indexer has a few.
const CONNECTIONS_MAX: usize = 256;

/// How an index behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serving {
    /// How long a batch takes before it is applied.
    pub delay: Duration,
}

/// An index and its history.
#[derive(Debug)]
pub struct IndexServer<E> {
    env: E,
    serving: Serving,
    node: NodeRecorder,
    /// Held while a write is applied and written down: the history has the order in which they were applied.
    memory: Mutex<MemoryIndex>,
    connections: AtomicUsize,
}

impl<E: Env> IndexServer<E> {
    /// An empty index.
    pub fn new(env: E, serving: Serving, node: NodeRecorder) -> Arc<Self> {
        let memory = Mutex::new(MemoryIndex::new(TOMBSTONE_RETENTION));
        Arc::new(IndexServer { env, serving, node, memory, connections: AtomicUsize::new(0) })
    }

    /// Listens on `address`, and serves until `stop`. Gives the address, whose port may have been chosen.
    pub async fn listen(self: Arc<Self>, address: &str, stop: Stop) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        let env = self.env.clone();
        env.spawn(async move {
            let (accepting, asked) = (std::pin::pin!(self.accept(listener)), std::pin::pin!(stop.requested()));
            futures_util::future::select(accepting, asked).await;
        });
        Ok(bound)
    }

    async fn accept(self: &Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((connection, _)) = listener.accept().await else {
                // Out of file descriptors, most likely: some will be free again.
                self.env.sleep(Duration::from_millis(100)).await;
                continue;
            };
            if self.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let server = self.clone();
            self.env.spawn(async move {
                // A client that breaks off or talks nonsense ends its connection, and nothing else.
                let _ = server.serve(connection).await;
                server.connections.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    async fn serve(&self, mut connection: TcpStream) -> std::io::Result<()> {
        connection.set_nodelay(true)?;
        while let Some(request) = receive(&mut connection).await? {
            let answer = match request {
                Request::Bulk { sender, writes } => {
                    if !self.serving.delay.is_zero() {
                        self.env.sleep(self.serving.delay).await;
                    }
                    let writes: Vec<IndexOp> = writes.into_iter().map(IndexOp::from).collect();
                    self.apply(&sender.into(), &writes)
                }
                Request::Documents => Answer::Documents(self.documents()),
            };
            send(&mut connection, &answer).await?;
        }
        Ok(())
    }

    fn apply(&self, sender: &Arc<str>, writes: &[IndexOp]) -> Answer {
        let mut memory = self.lock();
        let mut outcomes = Vec::with_capacity(writes.len());
        for op in writes {
            if asks_to_be_refused(op) {
                outcomes.push(ItemOutcome::Rejected { reason: "the document says so".into() });
                continue;
            }
            let seen = memory.visible_changes();
            let outcome = memory.apply_one(self.env.now(), op);
            if outcome == ItemOutcome::Applied {
                let changed = memory.visible_changes() > seen;
                let (sender, write) = (Some(sender.clone()), Box::new(index_write(op)));
                self.node.record(What::IndexApplied { sender, write, changed });
            }
            outcomes.push(outcome);
        }
        Answer::Outcomes(outcomes.into_iter().map(Into::into).collect())
    }

    fn documents(&self) -> Vec<Stored> {
        let memory = self.lock();
        let indexes: Vec<Option<&str>> = memory.indexes().collect();
        let mut all = Vec::new();
        for index in indexes {
            let stored = |(id, version, body): (&str, _, &bytes::Bytes)| Stored {
                index: index.map(str::to_owned),
                id: id.to_owned(),
                version,
                body: String::from_utf8_lossy(body).into_owned(),
            };
            match index {
                None => all.extend(memory.documents().map(stored)),
                Some(name) => all.extend(memory.documents_in(name).map(stored)),
            }
        }
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, MemoryIndex> {
        self.memory.lock().expect("no code panics while it holds the index")
    }
}
