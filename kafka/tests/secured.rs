//! TLS, SASL and rights on real listeners: what passes, and what is refused in seconds, typed, with the next step.

mod common;

use std::sync::Arc;
use std::time::Duration;

use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::*;
use seriatim_ingest::env::TokioEnv;
use seriatim_kafka::{KafkaSettings, KafkaTransport};
use seriatim_kafka_dev::secured::{Entrance, Operation, Right, password};
use seriatim_kafka_dev::{Cluster, testing};

use common::*;

/// What an error may take.
const SECONDS_MAX: u64 = 8;
const USER: &str = "worker";
const STRANGER: &str = "stranger";

/// A client that comes in by `entrance`, and knows the authority.
fn by(cluster: &Cluster, entrance: Entrance) -> KafkaSettings {
    let settings = KafkaSettings::new(cluster.secured_bootstrap(entrance).expect("it is secured"));
    let settings = settings.with("security.protocol", entrance.protocol());
    match entrance {
        Entrance::Sasl => settings,
        _ => settings.with("ssl.ca.location", cluster.authority().display().to_string()),
    }
}

fn as_user(settings: KafkaSettings, mechanism: &str, user: &str) -> KafkaSettings {
    settings.with("sasl.mechanism", mechanism).with("sasl.username", user).with("sasl.password", password(user))
}

fn world(settings: KafkaSettings) -> World {
    let env = TokioEnv::new();
    let transport = KafkaTransport::new(env.clone(), settings.clone()).expect("good settings");
    World { env, transport, settings }
}

/// Runs `test` against a secured cluster, within a bound.
fn with_secured<F: Future<Output = ()>>(seconds: u64, test: impl FnOnce(&'static Cluster) -> F) {
    let Some(cluster) = testing::secured() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(seconds), test(cluster)).await });
    runtime.shutdown_background();
    ended.unwrap_or_else(|_| panic!("it did not end in {seconds} s"));
}

/// A topic that was made by the plain listener, where everybody may.
async fn topic(cluster: &Cluster) -> Arc<str> {
    world(KafkaSettings::new(cluster.bootstrap())).topic(1).await
}

/// The error of a client that cannot come in.
async fn outside(settings: KafkaSettings) -> TransportError {
    let env = TokioEnv::new();
    let begun = env.now();
    let settings = KafkaSettings { connect_limit: Duration::from_secs(3), ..settings };
    let error = KafkaTransport::connect(env.clone(), settings).await.expect_err("it must not come in");
    assert!(env.now().since(begun) < Duration::from_secs(SECONDS_MAX), "{error}");
    assert_eq!(error.kind, ErrorKind::Refused, "{error}");
    error
}

fn says(error: &TransportError, code: &str, words: &[&str]) {
    assert_eq!((error.kind, error.code), (ErrorKind::Refused, code), "{error}");
    for word in words {
        assert!(error.context.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn records_and_commits_pass_by_every_entrance_and_mechanism() {
    with_secured(120, async |cluster| {
        let ways = [
            (Entrance::Sasl, "PLAIN"),
            (Entrance::Sasl, "SCRAM-SHA-256"),
            (Entrance::SaslTls, "PLAIN"),
            (Entrance::SaslTls, "SCRAM-SHA-512"),
        ];
        let topic_of = async |settings: KafkaSettings| {
            let topic = topic(cluster).await;
            for operation in [Operation::Read, Operation::Write] {
                cluster.grant(USER, &[Right::topic(operation, &topic)]).expect("granted");
            }
            cluster.grant(USER, &[Right::group(Operation::Read, "group-").prefixed()]).expect("granted");
            passes(&world(settings), &topic).await;
        };
        for (entrance, mechanism) in ways {
            topic_of(as_user(by(cluster, entrance), mechanism, USER)).await;
        }
        // Encrypted and nobody in particular: the cluster takes that for its own people.
        topic_of(by(cluster, Entrance::Tls)).await;
    });
}

/// Produces, consumes as a member of a group, commits, and reads by assignment.
async fn passes(world: &World, topic: &Arc<str>) {
    KafkaTransport::connect(world.env.clone(), world.settings.clone()).await.expect("it comes in");
    world.fill(topic, 0, 0, 20).await;
    let mut member = world.join(group(topic)).await;
    member.until_records(20).await;
    assert_eq!(member.records.iter().map(number).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    assert_eq!(member.commit(topic, 0, 20).await, Ok(()));
    member.group.leave().await;
}

#[test]
fn an_authority_that_signed_nothing_here_is_refused_with_the_property_to_mend() {
    with_secured(60, async |cluster| {
        for entrance in [Entrance::Tls, Entrance::SaslTls] {
            let settings = as_user(by(cluster, entrance), "SCRAM-SHA-512", USER);
            let foreign = cluster.foreign_authority().display().to_string();
            let error = outside(settings.with("ssl.ca.location", foreign)).await;
            let address = cluster.secured_bootstrap(entrance).expect("it is secured");
            says(&error, "_SSL", &[&address, "certificate verify failed", "`ssl.ca.location`"]);
        }
    });
}

#[test]
fn a_wrong_password_an_unknown_user_and_a_mechanism_that_is_off_are_refused() {
    with_secured(60, async |cluster| {
        for (entrance, mechanism) in [(Entrance::Sasl, "PLAIN"), (Entrance::SaslTls, "SCRAM-SHA-256")] {
            let right = as_user(by(cluster, entrance), mechanism, USER);
            for wrong in [
                right.clone().with("sasl.password", "wrong"),
                right.with("sasl.username", "nobody"),
                as_user(by(cluster, entrance), "OAUTHBEARER", USER)
                    .with("enable.sasl.oauthbearer.unsecure.jwt", "true")
                    .with("sasl.oauthbearer.config", "principal=worker"),
            ] {
                let error = outside(wrong).await;
                says(&error, "SASL_AUTHENTICATION_FAILED", &["127.0.0.1", "`sasl.password`"]);
                assert!(!error.context.contains("worker-secret"), "a password was told: {error}");
            }
        }
    });
}

#[test]
fn a_client_that_speaks_another_protocol_than_the_listener_is_told_so() {
    with_secured(90, async |cluster| {
        let at = |entrance| cluster.secured_bootstrap(entrance).expect("it is secured");
        for entrance in Entrance::ALL {
            let error = outside(KafkaSettings::new(at(entrance))).await;
            says(&error, "BROKER_NOT_AVAILABLE", &[&at(entrance), "security.protocol"]);
        }
        let error = outside(KafkaSettings { bootstrap: cluster.bootstrap(), ..by(cluster, Entrance::Tls) }).await;
        // librdkafka guesses at a listener without TLS, or only says that the handshake was cut short.
        says(&error, "BROKER_NOT_AVAILABLE", &[&cluster.bootstrap(), "security.protocol"]);
    });
}

#[test]
fn who_was_granted_nothing_is_refused_everything_by_name_of_the_right() {
    with_secured(120, async |cluster| {
        let world = world(as_user(by(cluster, Entrance::SaslTls), "SCRAM-SHA-512", STRANGER));
        let (env, topic) = (world.env.clone(), topic(cluster).await);
        let begun = env.now();
        let admin = world.transport.admin();
        let new = NewTopic { name: unique("forbidden").into(), partitions: 1, replication: 1 };
        let error = admin.create_topics(vec![new.clone()]).await.pop().expect("one").expect_err("it may not");
        says(&error, "TOPIC_AUTHORIZATION_FAILED", &[&new.name, "grant this principal"]);
        let error = admin.partition_counts(vec![topic.clone()]).await.pop().expect("one").expect_err("it may not");
        says(&error, "TOPIC_AUTHORIZATION_FAILED", &[&topic, "grant this principal"]);
        let producer = world.transport.producer(ProducerConfig::default()).await.expect("a producer");
        for outcome in producer.send_all(vec![numbered(&topic, 0, 0), numbered(&topic, 0, 1)]).await.await {
            let error = outcome.expect_err("it may not");
            assert_eq!(error.kind, ErrorKind::Refused, "{error}");
            assert!(error.code.ends_with("_AUTHORIZATION_FAILED"), "{error}");
            assert!(error.context.contains("grant this principal"), "{error}");
        }
        let (mut poller, group) = world.transport.join(group(&topic)).await.expect("a member");
        says(&refused(&env, async || poller.poll(1, WAIT).await.map(|_| ())).await, "GROUP_AUTHORIZATION_FAILED", &[]);
        group.leave().await;
        let from = vec![(TopicPartition::new(topic.clone(), 0), 0)];
        let error = world.transport.assign("reader".into(), from.clone()).await.expect_err("it may not");
        says(&error, "TOPIC_AUTHORIZATION_FAILED", &[&topic, "grant this principal"]);
        // One that it may look at and not read.
        cluster.grant(STRANGER, &[Right::topic(Operation::Describe, &topic)]).expect("granted");
        let mut reader = world.transport.assign("reader".into(), from).await.expect("a reader");
        let error = refused(&env, async || reader.poll(1, WAIT).await.map(|_| ())).await;
        says(&error, "TOPIC_AUTHORIZATION_FAILED", &[&topic, "grant this principal"]);
        assert!(env.now().since(begun) < Duration::from_secs(30), "refusals took {:?}", env.now().since(begun));
    });
}

/// Polls until an error comes, for seconds.
async fn refused(env: &TokioEnv, mut poll: impl AsyncFnMut() -> Result<(), TransportError>) -> TransportError {
    let until = env.now() + Duration::from_secs(SECONDS_MAX);
    loop {
        if let Err(error) = poll().await {
            return error;
        }
        assert!(env.now() < until, "no error came");
    }
}

#[test]
fn a_right_on_one_topic_is_none_on_another_and_one_refusal_stops_no_other_record() {
    with_secured(60, async |cluster| {
        let world = world(as_user(by(cluster, Entrance::SaslTls), "SCRAM-SHA-512", "indexer"));
        let (mine, foreign) = (topic(cluster).await, topic(cluster).await);
        cluster.grant("indexer", &[Right::topic(Operation::Write, &mine)]).expect("granted");
        let producer = world.transport.producer(ProducerConfig::default()).await.expect("a producer");
        let records = vec![numbered(&mine, 0, 0), numbered(&foreign, 0, 1), numbered(&mine, 0, 2)];
        let outcomes = producer.send_all(records).await.await;
        assert_eq!(outcomes[0].as_ref().map(|at| at.offset), Ok(0));
        says(outcomes[1].as_ref().expect_err("it may not"), "TOPIC_AUTHORIZATION_FAILED", &[&foreign]);
        assert_eq!(outcomes[2].as_ref().map(|at| at.offset), Ok(1));
    });
}
