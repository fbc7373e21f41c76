//! Core's [`Transport`] port over rdkafka: the same pipeline, against a real Kafka.
//!
//! [`KafkaTransport`] makes producers, members of groups, consumers by assignment and an admin client. What they
//! promise is said by the port; what stands behind it here is in the modules: `group` for rebalances and commits,
//! `producer` for order and back-pressure, `settings` for the properties that may be passed through.
//!
//! Architecture invariants: nothing here knows the simulation; nothing blocks an executor, or is done in a callback of
//! librdkafka; no record is given up, and no offset is committed, but as the port says.
#![deny(missing_debug_implementations)]

use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{GroupConfig, ProducerConfig, Transport, TransportError};

mod admin;
mod assigned;
mod client;
mod cluster;
mod error;
mod group;
mod producer;
mod records;
mod settings;

pub use admin::KafkaAdmin;
pub use assigned::KafkaAssigned;
pub use group::{KafkaGroup, KafkaPoller};
pub use producer::KafkaProducer;
pub use settings::KafkaSettings;

use cluster::Cluster;

/// What a simulation charges for blocking work. There is none over a real Kafka.
const NO_COST: Duration = Duration::ZERO;

/// A Kafka cluster, as one process sees it. Clones share the clients that look things up.
#[derive(Clone, Debug)]
pub struct KafkaTransport<E> {
    env: E,
    cluster: Arc<Cluster>,
}

impl<E: Env> KafkaTransport<E> {
    /// The cluster that `settings` name. No broker is asked yet: [`KafkaTransport::connect`] finds a wrong address.
    pub fn new(env: E, settings: KafkaSettings) -> Result<Self, TransportError> {
        Ok(KafkaTransport { env, cluster: Arc::new(Cluster::new(settings)?) })
    }

    /// The same, once a broker has answered. After that, clients try for ever: a cluster that is down comes back.
    pub async fn connect(env: E, settings: KafkaSettings) -> Result<Self, TransportError> {
        let transport = KafkaTransport::new(env, settings)?;
        let cluster = transport.cluster.clone();
        transport.env.run_blocking(NO_COST, move || cluster.reach()).await?;
        Ok(transport)
    }
}

impl<E: Env> Transport for KafkaTransport<E> {
    type Producer = KafkaProducer<E>;
    type Poller = KafkaPoller<E>;
    type Group = KafkaGroup<E>;
    type Assigned = KafkaAssigned<E>;
    type Admin = KafkaAdmin<E>;

    async fn producer(&self, config: ProducerConfig) -> Result<Self::Producer, TransportError> {
        KafkaProducer::open(self.env.clone(), &self.cluster, config).await
    }

    async fn join(&self, config: GroupConfig) -> Result<(Self::Poller, Self::Group), TransportError> {
        group::join(self.env.clone(), &self.cluster, config).await
    }

    async fn assign(
        &self,
        client_id: String,
        from: Vec<(TopicPartition, i64)>,
    ) -> Result<Self::Assigned, TransportError> {
        KafkaAssigned::open(self.env.clone(), &self.cluster, &client_id, from).await
    }

    fn admin(&self) -> Self::Admin {
        KafkaAdmin::new(self.env.clone(), self.cluster.clone())
    }
}
