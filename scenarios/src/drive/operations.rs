//! The connector of the scenarios: publishes the operations of a run, with its pauses.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use seriatim_core::connector::{Connector, ConnectorError};
use seriatim_core::document::Document;
use seriatim_core::env::Env;
use seriatim_core::publisher::Publisher;

use super::{SharedProgress, lock};
use crate::plan::PublisherPause;
use crate::workload::Op;

/// Publishes operations one by one.
pub(crate) struct Operations<E> {
    pub(crate) env: E,
    pub(crate) operations: Arc<Vec<Op>>,
    /// In order.
    pub(crate) pauses: Vec<PublisherPause>,
    /// Where the publisher is left for who asks what it waits for.
    pub(crate) progress: SharedProgress,
}

impl<E: Env> Operations<E> {
    async fn publish(&mut self, publisher: &Publisher) -> Result<(), ConnectorError> {
        lock(&self.progress).publisher = Some(publisher.clone());
        let mut pauses = self.pauses.iter().peekable();
        for (published, op) in (0u64..).zip(self.operations.iter()) {
            while let Some(pause) = pauses.next_if(|pause| pause.after_records <= published) {
                self.env.sleep(Duration::from_micros(pause.for_micros)).await;
            }
            let document = Document::parse(op.document().into());
            let document = document.map_err(|error| ConnectorError(format!("operation {published}: {error}")))?;
            publisher.publish(document).await.map_err(|error| ConnectorError(error.to_string()))?;
        }
        Ok(())
    }
}

impl<E: Env> Connector for Operations<E> {
    fn name(&self) -> &str {
        "operations"
    }

    fn execute<'a>(&'a mut self, publisher: &'a Publisher) -> BoxFuture<'a, Result<(), ConnectorError>> {
        self.publish(publisher).boxed()
    }
}
