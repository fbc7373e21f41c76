//! Processes of a pipeline on a cluster that asks for TLS, a user and rights: with those that README lists a run
//! completes, and whatever is missing ends the process in seconds, with one message.

mod nodes;

use std::path::Path;

use nodes::{Ended, Running, make_topics, run, unique, words};
use scenarios::node::LISTENING;
use seriatim_kafka_dev::secured::{Entrance, Operation, Right, password};
use seriatim_kafka_dev::{Cluster, testing};

/// What an ending may take: looking for topics and for brokers included.
const SECONDS_MAX: u64 = 30;

/// A pipeline on the cluster.
struct Site {
    cluster: &'static Cluster,
    pipeline: String,
    folder: tempfile::TempDir,
}

impl Site {
    fn new(what: &str) -> Option<Self> {
        let cluster = testing::secured()?;
        let pipeline = unique(what);
        make_topics(&cluster.bootstrap(), &pipeline, &[("source", &[]), ("dest", &[]), ("fail", &[])]);
        Some(Site { cluster, pipeline, folder: tempfile::tempdir().expect("a folder") })
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn bootstrap(&self) -> String {
        self.cluster.secured_bootstrap(Entrance::SaslTls).expect("it is secured")
    }

    /// The words of a process of `role` as `user`; `more` is added, and wins.
    fn words(&self, role: &str, user: &str, more: &[(&str, &str)]) -> Vec<String> {
        let file = self.folder().join(format!("{user}.properties"));
        let authority = self.cluster.authority().display().to_string();
        let text = format!(
            "# as {user}\n\nsecurity.protocol=sasl_ssl\nssl.ca.location = {authority}\nsasl.mechanism=SCRAM-SHA-512\n\
             sasl.username={user}\nsasl.password={}\n",
            password(user)
        );
        std::fs::write(&file, text).expect("written");
        let (bootstrap, file) = (self.bootstrap(), file.display().to_string());
        let own = [("kafka", &*bootstrap), ("pipeline", &self.pipeline), ("properties-file", &file)];
        words(role, &own.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
    }

    fn publish(&self, user: &str, more: &[(&str, &str)]) -> Ended {
        let more: Vec<_> = [("generate", "50")].into_iter().chain(more.iter().copied()).collect();
        run(self.folder(), SECONDS_MAX, &self.words("publisher", user, &more))
    }

    /// Gives `user` the rights of `role`, as README lists them, but those on what `without` names.
    fn grant(&self, user: &str, role: &str, without: &str) {
        let name = |end: &str| format!("{}_{end}", self.pipeline);
        let (source, dest, fail, event) = (name("source"), name("dest"), name("fail"), name("event_"));
        let (workers, indexers) = (name("workers"), name("indexers"));
        use Operation::{Create, Describe, Read, Write};
        let of_role = match role {
            "publisher" => vec![
                ("source", Right::topic(Read, &source)),
                ("source", Right::topic(Write, &source)),
                ("dest", Right::topic(Describe, &dest)),
                ("fail", Right::topic(Write, &fail)),
                ("event", Right::topic(Create, &event).prefixed()),
                ("event", Right::topic(Read, &event).prefixed()),
                ("event", Right::topic(Write, &event).prefixed()),
            ],
            "worker" => vec![
                ("source", Right::topic(Read, &source)),
                ("group", Right::group(Read, &workers)),
                ("dest", Right::topic(Write, &dest)),
                ("fail", Right::topic(Write, &fail)),
                ("event", Right::topic(Write, &event).prefixed()),
            ],
            _ => vec![
                ("dest", Right::topic(Read, &dest)),
                ("group", Right::group(Read, &indexers)),
                ("fail", Right::topic(Write, &fail)),
                ("event", Right::topic(Write, &event).prefixed()),
            ],
        };
        let rights: Vec<_> = of_role.into_iter().filter(|(on, _)| *on != without).map(|(_, right)| right).collect();
        self.cluster.grant(user, &rights).expect("granted");
    }
}

#[test]
fn a_run_completes_over_tls_and_scram_with_the_rights_that_the_readme_lists() {
    let Some(site) = Site::new("allowed") else { return };
    for user in ["publisher", "worker", "indexer"] {
        site.grant(user, user, "");
    }
    let index = Running::start(site.folder(), "index", &words("index", &[]));
    let address = index.says(LISTENING);
    let worker = Running::start(site.folder(), "worker", &site.words("worker", "worker", &[]));
    let indexer = site.words("indexer", "indexer", &[("index", &address)]);
    let indexer = Running::start(site.folder(), "indexer", &indexer);
    let ended = site.publish("publisher", &[]);
    assert_eq!(ended.status, Some(0), "{}\n{}\n{}", ended.err, worker.printed(), indexer.printed());
    assert!(ended.out.contains("50 published"), "{}", ended.out);
    for process in [worker, indexer] {
        let printed = process.stop();
        assert!(!printed.contains("error"), "{printed}");
    }
}

#[test]
fn who_cannot_come_in_ends_in_seconds_with_the_property_to_mend() {
    let Some(site) = Site::new("outside") else { return };
    let foreign = format!("ssl.ca.location={}", site.cluster.foreign_authority().display());
    let at = site.bootstrap();
    for role in ["publisher", "worker"] {
        let end = |property: &str| match role {
            "publisher" => site.publish(role, &[("property", property)]),
            _ => run(site.folder(), SECONDS_MAX, &site.words(role, role, &[("property", property)])),
        };
        end("sasl.password=wrong").refused(&["SASL_AUTHENTICATION_FAILED", "`sasl.password`", "127.0.0.1"]);
        end(&foreign).refused(&["_SSL", "certificate verify failed", "`ssl.ca.location`", &at]);
        end("security.protocol=plaintext").refused(&["BROKER_NOT_AVAILABLE", "`security.protocol`", &at]);
        end("enable.auto.commit=true").refused(&["`enable.auto.commit`", "what was polled is not what was processed"]);
        end("no.such.property=1").refused(&["no.such.property"]);
    }
}

#[test]
fn who_was_granted_too_little_ends_in_seconds_with_the_right_that_is_missing() {
    let Some(site) = Site::new("denied") else { return };
    let topic = |end: &str| format!("{}_{end}", site.pipeline);
    let denied = "TOPIC_AUTHORIZATION_FAILED";
    for role in ["publisher", "worker"] {
        let ended = match role {
            "publisher" => site.publish("stranger", &[]),
            _ => run(site.folder(), SECONDS_MAX, &site.words(role, "stranger", &[])),
        };
        ended.refused(&[denied, &topic("source"), "the rights that README lists"]);
    }
    // A topic that may not be created.
    site.grant("publisher", "publisher", "event");
    site.publish("publisher", &[]).refused(&[denied, &topic("event_"), "grant this principal"]);
    // A group that may not be joined.
    site.grant("worker", "worker", "group");
    let ended = run(site.folder(), SECONDS_MAX, &site.words("worker", "worker", &[]));
    ended.refused(&["GROUP_AUTHORIZATION_FAILED", &topic("workers"), "grant this principal READ on the group"]);
}

/// Rights that go are not documents that fail: whoever has them again goes on where the other stopped.
#[test]
fn a_worker_that_may_look_at_its_destination_and_not_write_ends_and_nothing_is_lost() {
    let Some(site) = Site::new("halfway") else { return };
    for (user, without) in [("publisher", ""), ("worker", "dest"), ("indexer", "")] {
        site.grant(user, user, without);
    }
    let dest = format!("{}_dest", site.pipeline);
    site.cluster.grant("worker", &[Right::topic(Operation::Describe, &dest)]).expect("granted");
    let index = Running::start(site.folder(), "index", &words("index", &[]));
    let address = index.says(LISTENING);
    let indexer = site.words("indexer", "indexer", &[("index", &address)]);
    let indexer = Running::start(site.folder(), "indexer", &indexer);
    let publisher = site.words("publisher", "publisher", &[("generate", "50")]);
    let publisher = Running::start(site.folder(), "publisher", &publisher);
    let ended = run(site.folder(), SECONDS_MAX, &site.words("worker", "worker", &[]));
    ended.refused(&["TOPIC_AUTHORIZATION_FAILED", &dest, "grant this principal"]);
    site.grant("worker", "worker", "");
    let worker = Running::start(site.folder(), "worker-again", &site.words("worker", "worker", &[]));
    let printed = publisher.ended(SECONDS_MAX);
    assert!(printed.contains("50 published"), "{printed}");
    assert!(!printed.contains("AUTHORIZATION"), "documents were given up: {printed}\n{}", worker.printed());
    let printed = indexer.stop();
    assert!(!printed.contains("error"), "{printed}");
}
