//! Connectors: where documents come from.

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::publisher::Publisher;

/// Why a connector stopped.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConnectorError(pub String);

/// Reads a source and publishes its documents.
///
/// The runner calls `pre_execute`, `execute`, `post_execute` only when the run was complete and without an error, and
/// `close` always.
pub trait Connector: Send {
    /// Name in summaries and errors.
    fn name(&self) -> &str;

    /// Checks and prepares, before anything is published.
    fn pre_execute(&mut self) -> BoxFuture<'_, Result<(), ConnectorError>> {
        ready(Ok(())).boxed()
    }

    /// Publishes everything. Several tasks may publish through clones of the publisher.
    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>>;

    /// After every document has come to its end.
    fn post_execute(&mut self) -> BoxFuture<'_, Result<(), ConnectorError>> {
        ready(Ok(())).boxed()
    }

    /// Frees what it holds.
    fn close(&mut self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
}
