//! The cluster as one process sees it: its settings, and the clients through which it asks about topics and groups.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::admin::AdminClient;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use seriatim_core::transport::{ErrorKind, TransportError};

use crate::client::{Complaints, PlainContext, detach, lock};
use crate::error;
use crate::settings::KafkaSettings;

/// Groups whose offsets were asked for and whose client is kept for the next time.
const GROUPS_MAX: usize = 8;
/// Events of a client that are taken off its queue at a time.
const EVENTS_MAX: usize = 64;

pub(crate) type Lookup = BaseConsumer<PlainContext>;

/// Clients are made when they are first needed, and closed away from whoever drops the last handle.
#[derive(Default)]
struct Clients {
    admin: Option<Arc<AdminClient<PlainContext>>>,
    lookup: Option<Arc<Lookup>>,
    groups: BTreeMap<String, Arc<Lookup>>,
}

pub(crate) struct Cluster {
    pub(crate) settings: KafkaSettings,
    complaints: Complaints,
    clients: Mutex<Clients>,
}

impl Cluster {
    pub(crate) fn new(settings: KafkaSettings) -> Result<Self, TransportError> {
        settings.check()?;
        Ok(Cluster { settings, complaints: Complaints::default(), clients: Mutex::default() })
    }

    fn context(&self) -> PlainContext {
        PlainContext { complaints: self.complaints.clone() }
    }

    /// The admin client. Making it does not ask a broker.
    pub(crate) fn admin(&self) -> Result<Arc<AdminClient<PlainContext>>, TransportError> {
        let mut clients = lock(&self.clients);
        if let Some(admin) = &clients.admin {
            return Ok(admin.clone());
        }
        let made = AdminClient::from_config_and_context(&self.settings.admin(), self.context());
        let made = Arc::new(made.map_err(|error| error::of(&error, "making an admin client"))?);
        clients.admin = Some(made.clone());
        Ok(made)
    }

    /// A client that asks about topics. It is a consumer, since looking a topic up as a producer may create it.
    pub(crate) fn lookup(&self) -> Result<Arc<Lookup>, TransportError> {
        let mut clients = lock(&self.clients);
        if let Some(lookup) = &clients.lookup {
            return Ok(lookup.clone());
        }
        let config = self.settings.consumer("seriatim-lookup");
        let made = BaseConsumer::from_config_and_context(&config, self.context());
        let made = Arc::new(made.map_err(|error| error::of(&error, "making a client for look-ups"))?);
        clients.lookup = Some(made.clone());
        Ok(made)
    }

    /// A client that asks for the committed offsets of `group`, without joining it.
    pub(crate) fn group(&self, group: &str) -> Result<Arc<Lookup>, TransportError> {
        let mut clients = lock(&self.clients);
        if let Some(lookup) = clients.groups.get(group) {
            return Ok(lookup.clone());
        }
        let mut config = self.settings.consumer("seriatim-lookup");
        config.set("group.id", group);
        let made = BaseConsumer::from_config_and_context(&config, self.context());
        let made = made.map_err(|error| error::of(&error, format!("making a client for group `{group}`")))?;
        let made = Arc::new(made);
        let old =
            if clients.groups.len() >= GROUPS_MAX { std::mem::take(&mut clients.groups) } else { BTreeMap::new() };
        clients.groups.insert(group.to_owned(), made.clone());
        drop(clients);
        detach("kafka-close", move || drop(old));
        Ok(made)
    }

    /// The outcome of a request; an error with what librdkafka said of its connections meanwhile.
    pub(crate) fn explain<R>(&self, client: &Lookup, outcome: Result<R, TransportError>) -> Result<R, TransportError> {
        serve(client);
        match outcome {
            Ok(answer) => {
                self.complaints.forget();
                Ok(answer)
            }
            Err(error) => Err(self.complaints.explain(error)),
        }
    }

    /// Blocks until a broker answered, or says why none did.
    pub(crate) fn reach(&self) -> Result<(), TransportError> {
        const TRY: Duration = Duration::from_millis(500);
        let client = self.lookup()?;
        let tries = (self.settings.connect_limit.as_millis() / TRY.as_millis()).max(1);
        let mut last = RDKafkaErrorCode::BrokerNotAvailable;
        for _ in 0..tries {
            match client.client().fetch_metadata(Some("__consumer_offsets"), TRY) {
                Ok(_) => {
                    self.complaints.forget();
                    return Ok(());
                }
                Err(error) => last = error.rdkafka_error_code().unwrap_or(last),
            }
            serve(&client);
            // A refused credential or certificate is refused again.
            if matches!(self.complaints.last(), Some((RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SSL, _))) {
                break;
            }
        }
        if let Some((RDKafkaErrorCode::SSL, reason)) = self.complaints.last() {
            let doing = format!("reaching Kafka at {} over TLS: {reason}", self.settings.bootstrap);
            let error = error::of_code(RDKafkaErrorCode::SSL, doing);
            return Err(TransportError { kind: ErrorKind::Refused, ..error });
        }
        let doing = format!("reaching Kafka at {} for {:?}", self.settings.bootstrap, self.settings.connect_limit);
        let error = self.complaints.explain(error::of_code(last, doing));
        // Nothing says that it is there at all.
        let kind = ErrorKind::Refused;
        let context = format!(
            "{}; check the address, that a broker listens there, and that `security.protocol` is that of its listener",
            error.context
        );
        Err(match error.code {
            "SASL_AUTHENTICATION_FAILED" => error,
            _ => TransportError { kind, code: "BROKER_NOT_AVAILABLE", context },
        })
    }
}

/// Takes what is on a client's queue: logs, and complaints about its connections.
fn serve(client: &Lookup) {
    for _ in 0..EVENTS_MAX {
        let _ = client.poll(Duration::ZERO);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let clients = std::mem::take(&mut *lock(&self.clients));
        detach("kafka-close", move || drop(clients));
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("bootstrap", &self.settings.bootstrap).finish_non_exhaustive()
    }
}
