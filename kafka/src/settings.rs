//! Where the cluster is, and every client property that may be passed through.
//!
//! What this crate promises rests on some properties of librdkafka. A value that would break a promise is refused by
//! name and with the reason, before any client is made; so is what a typed configuration of the port already says,
//! since one of the two would be passed over in silence.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use seriatim_core::transport::{ErrorKind, TransportError};

/// How to reach a Kafka cluster.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// `bootstrap.servers`: `host:port`, more than one with commas between them.
    pub bootstrap: String,
    /// Properties of every client, by librdkafka's names: `security.protocol`, `sasl.username`, `socket.timeout.ms`, …
    pub properties: BTreeMap<String, String>,
    /// Properties of producers only: `compression.codec`, …
    pub producer_properties: BTreeMap<String, String>,
    /// Properties of consumers only: `fetch.min.bytes`, …
    pub consumer_properties: BTreeMap<String, String>,
    /// How long [`KafkaTransport::connect`](crate::KafkaTransport::connect) tries to reach the cluster.
    pub connect_limit: Duration,
    /// How long a request about the cluster may take: of the admin client, and of look-ups at an assignment.
    pub request_limit: Duration,
    /// The `group.id` of consumers by assignment. They join no group and commit nothing, but librdkafka asks for a
    /// name and looks its coordinator up.
    pub assigned_group: String,
}

impl KafkaSettings {
    /// The cluster behind `bootstrap`, with librdkafka's defaults.
    pub fn new(bootstrap: impl Into<String>) -> Self {
        KafkaSettings {
            bootstrap: bootstrap.into(),
            properties: BTreeMap::new(),
            producer_properties: BTreeMap::new(),
            consumer_properties: BTreeMap::new(),
            connect_limit: Duration::from_secs(10),
            request_limit: Duration::from_secs(30),
            assigned_group: "seriatim-assigned".into(),
        }
    }

    /// The same with a property of every client.
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(key.into(), value.into());
        self
    }

    /// Refuses what would break a promise: all of it at once.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        if self.bootstrap.trim().is_empty() {
            let context = "connecting to Kafka: name at least one broker, as `host:port`";
            return Err(TransportError::new(ErrorKind::Refused, "INVALID_CONFIG", context));
        }
        let maps = [&self.properties, &self.producer_properties, &self.consumer_properties];
        let problems: Vec<_> =
            maps.into_iter().flatten().filter_map(|(key, value)| Some((key, problem(key, value)?))).collect();
        if problems.is_empty() {
            return Ok(());
        }
        let list: Vec<_> = problems.iter().map(|(key, problem)| format!("`{key}`: {problem}")).collect();
        let context = format!("client properties that may not be set so: {}", list.join("; "));
        Err(TransportError::new(ErrorKind::Refused, "INVALID_CONFIG", context))
    }

    fn base(&self, client_id: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Warning);
        config.set("bootstrap.servers", &self.bootstrap).set("client.id", client_id);
        for (key, value) in &self.properties {
            config.set(key, value);
        }
        config
    }

    /// The configuration of a producer, before what its own configuration says.
    pub(crate) fn producer(&self, client_id: &str) -> ClientConfig {
        let mut config = self.base(client_id);
        for (key, value) in &self.producer_properties {
            config.set(key, value);
        }
        config.set("enable.idempotence", "true").set("acks", "all");
        // A record that is taken is never given up: nothing here has a time-out.
        config.set("retries", "2147483647").set("message.timeout.ms", "0");
        config
    }

    /// The configuration of a consumer, before what its own configuration says.
    pub(crate) fn consumer(&self, client_id: &str) -> ClientConfig {
        let mut config = self.base(client_id);
        // A queue of a partition that is full is looked at again after this time. With librdkafka's second a bound that
        // is emptied sooner leaves the consumer without work for the rest of it.
        config.set("fetch.queue.backoff.ms", "10");
        for (key, value) in &self.consumer_properties {
            config.set(key, value);
        }
        config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        config.set("isolation.level", "read_committed").set("allow.auto.create.topics", "false");
        config
    }

    /// The configuration of an admin client.
    pub(crate) fn admin(&self) -> ClientConfig {
        self.base("seriatim-admin")
    }
}

/// Values that may be given, if any, and why no other.
struct Rule {
    names: &'static [&'static str],
    allowed: &'static [&'static str],
    reason: &'static str,
}

const COMMITS: &str = "offsets are committed by `Group::commit` alone: what was polled is not what was processed";
const NEVER_GIVEN_UP: &str = "a record that was taken would be given up, and lost without a word";
const TYPED: &str = "say it in the configuration of the producer, of the group or of the cluster instead";

const RULES: &[Rule] = &[
    Rule { names: &["enable.auto.commit", "auto.commit.enable"], allowed: &["false"], reason: COMMITS },
    Rule { names: &["enable.auto.offset.store"], allowed: &["false"], reason: COMMITS },
    Rule { names: &["auto.commit.interval.ms", "offset.store.method"], allowed: &[], reason: COMMITS },
    Rule { names: &["offset.store.path", "offset.store.sync.interval.ms"], allowed: &[], reason: COMMITS },
    Rule {
        names: &["enable.idempotence"],
        allowed: &["true"],
        reason: "a retry could append a record twice, or behind a later one",
    },
    Rule {
        names: &["acks", "request.required.acks"],
        allowed: &["all", "-1"],
        reason: "an acknowledged record could be lost with its leader",
    },
    Rule {
        names: &["max.in.flight", "max.in.flight.requests.per.connection"],
        allowed: &["1", "2", "3", "4", "5"],
        reason: "brokers remember five batches of an idempotent producer: with more in flight order is lost",
    },
    Rule { names: &["retries", "message.send.max.retries"], allowed: &["2147483647"], reason: NEVER_GIVEN_UP },
    Rule { names: &["message.timeout.ms", "delivery.timeout.ms"], allowed: &["0"], reason: NEVER_GIVEN_UP },
    Rule {
        names: &["delivery.report.only.error"],
        allowed: &["false"],
        reason: "acknowledgements are delivery reports: none would ever come",
    },
    Rule {
        names: &["enable.gapless.guarantee"],
        allowed: &["false"],
        reason: "one record that is too large would end the producer",
    },
    Rule { names: &["queuing.strategy"], allowed: &["fifo"], reason: "records would be sent out of order" },
    Rule {
        names: &["transactional.id", "transaction.timeout.ms"],
        allowed: &[],
        reason: "records of a transaction that is never committed are acknowledged and never read",
    },
    Rule {
        names: &["isolation.level"],
        allowed: &["read_committed"],
        reason: "records of aborted transactions would be delivered",
    },
    Rule {
        names: &["group.protocol"],
        allowed: &["classic"],
        reason: "with KIP-848 commits are fenced by other rules, and an eviction raises a second revocation",
    },
    Rule { names: &["group.remote.assignor"], allowed: &[], reason: "it belongs to `group.protocol=consumer`" },
    Rule { names: &["group.protocol.type"], allowed: &["consumer"], reason: "it would join no consumer group" },
    Rule {
        names: &["enable.partition.eof"],
        allowed: &["false"],
        reason: "the end of a partition is no error; ask for watermarks",
    },
    Rule {
        names: &["allow.auto.create.topics"],
        allowed: &["false"],
        reason: "a topic that is absent means that its run is over: reading it must not make it",
    },
    Rule {
        names: &["plugin.library.paths"],
        allowed: &[],
        reason: "a plugin may change any of the properties that delivery rests on, unseen",
    },
    Rule {
        names: &[
            "bootstrap.servers",
            "metadata.broker.list",
            "client.id",
            "group.id",
            "group.instance.id",
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "max.poll.interval.ms",
            "auto.offset.reset",
            "queued.min.messages",
            "partition.assignment.strategy",
            "linger.ms",
            "queue.buffering.max.ms",
            "batch.num.messages",
            "batch.size",
            "queue.buffering.max.messages",
            "queue.buffering.max.kbytes",
            "message.max.bytes",
            "partitioner",
            "sticky.partitioning.linger.ms",
            "topic.metadata.propagation.max.ms",
        ],
        allowed: &[],
        reason: TYPED,
    },
];

/// Why `key` may not be `value`.
fn problem(key: &str, value: &str) -> Option<String> {
    if let Some(rule) = RULES.iter().find(|rule| rule.names.contains(&key)) {
        return match rule.allowed {
            [] => Some(rule.reason.to_owned()),
            allowed if allowed.contains(&value) => None,
            allowed => Some(format!("{} (only {} may be given)", rule.reason, allowed.join(", "))),
        };
    }
    needs_feature(key, value).map(str::to_owned)
}

/// What has to be built in for this property, and is not.
fn needs_feature(key: &str, value: &str) -> Option<&'static str> {
    let value = value.to_ascii_lowercase();
    let is_mechanism = matches!(key, "sasl.mechanism" | "sasl.mechanisms");
    let needs_tls = key.starts_with("ssl.")
        || key == "security.protocol" && value.contains("ssl")
        || is_mechanism && (value.starts_with("scram") || value == "oauthbearer");
    if needs_tls && cfg!(not(feature = "tls")) {
        return Some("TLS is not built in: build with the feature `tls` (`sasl` for SCRAM)");
    }
    if is_mechanism && value == "gssapi" && cfg!(not(feature = "kerberos")) {
        return Some("Kerberos is not built in: build with the feature `kerberos`, or name another `sasl.mechanisms`");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(key: &str, value: &str) -> Option<String> {
        let error = KafkaSettings::new("127.0.0.1:9092").with(key, value).check().err()?;
        assert_eq!((error.kind, error.code), (ErrorKind::Refused, "INVALID_CONFIG"));
        Some(error.context)
    }

    #[test]
    fn properties_that_would_break_delivery_are_refused_by_name_and_reason() {
        let table = [
            ("enable.auto.commit", "true"),
            ("enable.auto.offset.store", "true"),
            ("auto.commit.interval.ms", "1000"),
            ("enable.idempotence", "false"),
            ("acks", "1"),
            ("request.required.acks", "0"),
            ("max.in.flight.requests.per.connection", "6"),
            ("max.in.flight", "1000000"),
            ("retries", "3"),
            ("message.timeout.ms", "300000"),
            ("delivery.timeout.ms", "120000"),
            ("delivery.report.only.error", "true"),
            ("enable.gapless.guarantee", "true"),
            ("queuing.strategy", "lifo"),
            ("transactional.id", "mine"),
            ("isolation.level", "read_uncommitted"),
            ("group.protocol", "consumer"),
            ("enable.partition.eof", "true"),
            ("allow.auto.create.topics", "true"),
            ("plugin.library.paths", "monitoring-interceptor"),
            ("group.id", "mine"),
            ("max.poll.interval.ms", "10"),
            ("partitioner", "consistent"),
        ];
        for (key, value) in table {
            let context = refused(key, value).unwrap_or_else(|| panic!("`{key}={value}` was let through"));
            assert!(context.contains(&format!("`{key}`: ")), "{context}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let settings = KafkaSettings::new("127.0.0.1:9092").with("acks", "1").with("retries", "0");
        let context = settings.check().expect_err("both are wrong").context;
        assert!(context.contains("`acks`") && context.contains("`retries`"), "{context}");
    }

    #[test]
    fn other_properties_and_harmless_values_pass() {
        for (key, value) in [
            ("acks", "all"),
            ("enable.auto.commit", "false"),
            ("max.in.flight", "5"),
            ("compression.codec", "zstd"),
            ("socket.timeout.ms", "10000"),
            ("fetch.min.bytes", "1000"),
            ("client.rack", "a"),
            ("sasl.mechanisms", "PLAIN"),
            ("security.protocol", "sasl_plaintext"),
        ] {
            assert_eq!(refused(key, value), None, "{key}={value}");
        }
    }

    #[test]
    fn a_full_queue_is_looked_at_again_soon_unless_somebody_says_otherwise() {
        let mut settings = KafkaSettings::new("127.0.0.1:9092");
        let backoff =
            |settings: &KafkaSettings| settings.consumer("c").get("fetch.queue.backoff.ms").map(str::to_owned);
        assert_eq!(backoff(&settings).as_deref(), Some("10"));
        settings.consumer_properties.insert("fetch.queue.backoff.ms".into(), "250".into());
        assert_eq!(backoff(&settings).as_deref(), Some("250"));
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn tls_without_its_feature_is_refused_with_the_feature_named() {
        for (key, value) in [
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", "/etc/ca.pem"),
            ("sasl.mechanisms", "SCRAM-SHA-512"),
        ] {
            assert!(refused(key, value).is_some_and(|context| context.contains("feature `tls`")), "{key}");
        }
    }
}
