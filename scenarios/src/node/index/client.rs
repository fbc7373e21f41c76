//! The client's side: core's `Backend` over the socket.
//!
//! A connection that cannot be made means that nothing was sent; one that breaks, or that does not answer in time,
//! that nobody knows. It is then thrown away: its answer could be taken for that of the next request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seriatim_core::env::Env;
use seriatim_core::index::{Backend, BackendError, IndexOp, ItemOutcome};
use tokio::net::TcpStream;

use super::wire::{Answer, Request, Stored, receive, send};

/// How long an answer is waited for.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long a connection is waited for.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Connections that are kept for the next request.
const IDLE_MAX: usize = 8;

/// An index behind a socket. Clones share its connections.
#[derive(Clone, Debug)]
pub struct RemoteIndex<E> {
    env: E,
    address: Arc<str>,
    sender: Arc<str>,
    idle: Arc<Mutex<Vec<TcpStream>>>,
}

impl<E: Env> RemoteIndex<E> {
    /// The index at `address`, as the node `sender` reaches it. Connects at the first request.
    pub fn new(env: E, address: &str, sender: &str) -> Self {
        RemoteIndex { env, address: address.into(), sender: sender.into(), idle: Arc::default() }
    }

    /// Everything that a reader sees.
    pub async fn documents(&self) -> Result<Vec<Stored>, BackendError> {
        match self.request(&Request::Documents).await? {
            Answer::Documents(documents) => Ok(documents),
            other => Err(unexpected(&other)),
        }
    }

    async fn bulk(&self, ops: &[IndexOp]) -> Result<Vec<ItemOutcome>, BackendError> {
        let request = Request::Bulk { sender: (*self.sender).into(), writes: ops.iter().map(Into::into).collect() };
        match self.request(&request).await? {
            Answer::Outcomes(outcomes) if outcomes.len() == ops.len() => {
                Ok(outcomes.into_iter().map(Into::into).collect())
            }
            Answer::Refused(reason) => Err(BackendError::Unavailable(reason)),
            other => Err(unexpected(&other)),
        }
    }

    async fn request(&self, request: &Request) -> Result<Answer, BackendError> {
        let idle = self.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let exchange = async {
            send(&mut connection, request).await?;
            receive(&mut connection).await
        };
        let answer = self.env.timeout(ANSWER_LIMIT, exchange).await;
        let unknown = |reason: String| Err(BackendError::UnknownOutcome(format!("{}: {reason}", self.address)));
        match answer {
            Some(Ok(Some(answer))) => {
                let mut idle = self.lock();
                if idle.len() < IDLE_MAX {
                    idle.push(connection);
                }
                Ok(answer)
            }
            Some(Ok(None)) => unknown("it ended the connection".into()),
            Some(Err(error)) => unknown(error.to_string()),
            None => unknown(format!("no answer within {ANSWER_LIMIT:?}")),
        }
    }

    async fn connect(&self) -> Result<TcpStream, BackendError> {
        let absent = |reason: &dyn std::fmt::Display| {
            let address = &self.address;
            BackendError::Unavailable(format!("nothing answers at {address} ({reason}); is the index running there?"))
        };
        let connected = self.env.timeout(CONNECT_LIMIT, TcpStream::connect(&*self.address)).await;
        let connection = connected.ok_or_else(|| absent(&"time-out"))?.map_err(|error| absent(&error))?;
        connection.set_nodelay(true).map_err(|error| absent(&error))?;
        Ok(connection)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.idle.lock().expect("no code panics while it holds the connections")
    }
}

fn unexpected(answer: &Answer) -> BackendError {
    let what = match answer {
        Answer::Outcomes(outcomes) => format!("{} outcomes", outcomes.len()),
        Answer::Documents(_) => "documents".into(),
        Answer::Refused(reason) => reason.clone(),
    };
    BackendError::UnknownOutcome(format!("an answer to something else: {what}"))
}

impl<E: Env> Backend for RemoteIndex<E> {
    fn bulk<'a>(&'a self, ops: &'a [IndexOp]) -> BoxFuture<'a, Result<Vec<ItemOutcome>, BackendError>> {
        Box::pin(self.bulk(ops))
    }
}
