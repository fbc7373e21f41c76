//! The event topic of a run, when it is slow and when it is gone.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use seriatim_core::document::Document;
use seriatim_core::event::{Event, EventKind};
use seriatim_core::identity::RunId;
use seriatim_core::machines::ledger::TicketLedger;
use seriatim_core::messenger::kafka::{Consumer, KafkaConfig, KafkaMessengers, Topics};
use seriatim_core::messenger::{Emission, MessengerError, MessengerFactory, Payload, WorkerMessenger};
use seriatim_core::publisher::{Publisher, PublisherConfig};
use seriatim_sim::cluster::ClusterConfig;
use seriatim_sim::cluster::protocol::ErrorCode;
use seriatim_sim::{Node, SimEnv, SimTransport, World, WorldConfig, run};

const RUN: RunId = RunId(7);

type Worker = Consumer<SimEnv, SimTransport>;

fn messengers(node: &Node) -> KafkaMessengers<SimEnv, SimTransport> {
    KafkaMessengers::new(node.env(), node.transport(), KafkaConfig::new("p"))
}

/// The publisher of a new run.
async fn opened(world: &World) -> Publisher {
    world.create_topic("p_source", 1);
    world.create_topic("p_dest", 1);
    let node = world.node("publisher");
    let messenger = messengers(&node).publisher().await.unwrap();
    let ledger = Box::new(TicketLedger::new(RUN));
    Publisher::open(node.env(), messenger, RUN, ledger, PublisherConfig::default()).await.unwrap()
}

/// A run of three documents that are published and not worked on.
async fn published(world: &World) -> Publisher {
    let publisher = opened(world).await;
    for id in ["a", "b", "c"] {
        publisher.publish(Document::new(id).unwrap()).await.unwrap();
    }
    publisher.close();
    world.sleep(Duration::from_secs(1)).await;
    publisher
}

fn event_topic() -> String {
    Topics::of("p").event(RUN).to_string()
}

/// Takes the three documents and says that they were dropped.
async fn drop_all(world: &World, worker: &mut Worker) {
    let mut left = 3;
    while left > 0 {
        let works = WorkerMessenger::poll(worker, 10).await.unwrap().unwrap();
        left -= works.len();
        let emissions = works.into_iter().map(|work| {
            let Payload::Document(document, envelope) = work.payload else { panic!("it was published") };
            assert!(work.claim.begin());
            let mut event = Event::new(EventKind::Drop, envelope.ticket, document.id().clone(), 0);
            event.is_parent = true;
            Emission { claim: work.claim, outputs: Vec::new(), events: vec![event], dead_letters: Vec::new() }
        });
        WorkerMessenger::send(worker, emissions.collect()).await.unwrap();
    }
    world.sleep(Duration::from_secs(5)).await;
}

/// How the run ended, within two minutes.
async fn end(world: &World, publisher: &Publisher) -> Option<Result<(), MessengerError>> {
    match select(pin!(publisher.completion()), pin!(world.sleep(Duration::from_secs(120)))).await {
        Either::Left((end, _)) => Some(end),
        Either::Right(_) => None,
    }
}

fn assert_gone(end: Option<Result<(), MessengerError>>, name: &str) {
    let Some(Err(error)) = end else { panic!("the run hangs or succeeds: {end:?}") };
    assert!(matches!(&error, MessengerError::Topic { topic, .. } if topic == name), "{error:?}");
    assert!(error.to_string().contains("publish the input again as a new run"), "{error}");
}

/// A cluster whose brokers hear of what is new after a second.
fn slow_to_hear() -> WorldConfig {
    let cluster = ClusterConfig { brokers: 3, metadata_lag: Duration::from_secs(1), ..ClusterConfig::default() };
    WorldConfig { cluster, ..WorldConfig::default() }
}

#[test]
fn a_run_begins_on_topics_that_brokers_have_not_heard_of_yet() {
    // What a topic is called gives the brokers their turns.
    for name in ["a", "b", "c", "d"] {
        run(1, slow_to_hear(), move |world| async move {
            let node = world.node("publisher");
            world.create_topic(&format!("{name}_source"), 3);
            world.create_topic(&format!("{name}_dest"), 3);
            let messengers = KafkaMessengers::new(node.env(), node.transport(), KafkaConfig::new(name));
            let messenger = messengers.publisher().await.unwrap();
            let ledger = Box::new(TicketLedger::new(RUN));
            let config = PublisherConfig::default();
            let publisher = Publisher::open(node.env(), messenger, RUN, ledger, config).await.unwrap();
            publisher.close();
            end(&world, &publisher).await.expect("nothing is out").unwrap();
        })
        .unwrap();
    }
}

#[test]
fn a_run_without_its_topics_ends_with_an_error_that_says_what_to_do() {
    run(1, slow_to_hear(), |world| async move {
        let messenger = messengers(&world.node("publisher")).publisher().await.unwrap();
        let (env, ledger) = (world.node("other").env(), Box::new(TicketLedger::new(RUN)));
        let opened = Publisher::open(env, messenger, RUN, ledger, PublisherConfig::default()).await;
        let error = opened.expect_err("there is no topic").to_string();
        assert!(error.contains("p_source") && error.contains("create it before the run"), "{error}");
        assert!(world.now().since(seriatim_core::env::Instant::default()) < Duration::from_secs(30));
    })
    .unwrap();
}

#[test]
fn a_run_whose_event_topic_is_deleted_ends_with_an_error_that_names_it() {
    run(1, WorldConfig::default(), |world| async move {
        let publisher = published(&world).await;
        world.delete_topic(&event_topic());
        assert_gone(end(&world, &publisher).await, &event_topic());
    })
    .unwrap();
}

#[test]
fn a_run_whose_event_topic_was_made_anew_ends_with_an_error_too() {
    run(1, WorldConfig::default(), |world| async move {
        let publisher = published(&world).await;
        let partial = messengers(&world.node("other"));
        let mut worker = partial.worker().await.unwrap();
        // Something of it was read, or its offsets say nothing.
        world.append(
            &seriatim_core::identity::TopicPartition::new(event_topic(), 0),
            None,
            Some(bytes::Bytes::from_static(b"[]")),
            Vec::new(),
        );
        world.sleep(Duration::from_secs(2)).await;
        world.delete_topic(&event_topic());
        world.create_topic(&event_topic(), 1);
        assert_gone(end(&world, &publisher).await, &event_topic());
        WorkerMessenger::close(&mut worker).await;
    })
    .unwrap();
}

#[test]
fn a_run_whose_source_topic_is_deleted_ends_with_an_error_that_names_it() {
    run(1, WorldConfig::default(), |world| async move {
        let publisher = opened(&world).await;
        publisher.publish(Document::new("a").unwrap()).await.unwrap();
        world.sleep(Duration::from_secs(1)).await;
        world.delete_topic("p_source");
        publisher.publish(Document::new("b").unwrap()).await.unwrap();
        publisher.close();
        assert_gone(end(&world, &publisher).await, "p_source");
    })
    .unwrap();
}

#[test]
fn late_events_of_a_run_that_is_over_are_dropped_and_counted_and_their_records_are_done() {
    run(1, WorldConfig::default(), |world| async move {
        let publisher = published(&world).await;
        world.delete_topic(&event_topic());
        assert!(end(&world, &publisher).await.is_some());
        let workers = messengers(&world.node("worker"));
        let mut worker = workers.worker().await.unwrap();
        drop_all(&world, &mut worker).await;
        // Such a topic may be on its way to the brokers for a while.
        world.sleep(Duration::from_secs(60)).await;
        assert_eq!(workers.late_events(), 3);
        assert_eq!(world.lag(&Topics::of("p").worker_group(), "p_source"), 0, "nobody needs these records again");
        WorkerMessenger::close(&mut worker).await;
    })
    .unwrap();
}

#[test]
fn a_slow_event_topic_delays_a_run_and_nothing_else() {
    run(1, WorldConfig::default(), |world| async move {
        let publisher = published(&world).await;
        let name = event_topic();
        let slow = move |topic: &str| (*topic == *name).then_some(ErrorCode::NotEnoughReplicas);
        world.on_produce(Some(Box::new(move |batch| slow(&batch.partition.topic))));
        let workers = messengers(&world.node("worker"));
        let mut worker = workers.worker().await.unwrap();
        drop_all(&world, &mut worker).await;
        assert!(end(&world, &publisher).await.is_none(), "no event could be written");
        world.on_produce(None);
        end(&world, &publisher).await.unwrap().unwrap();
        let summary = publisher.summary();
        assert_eq!((summary.published, summary.completed, summary.parents.dropped), (3, 3, 3));
        assert_eq!(workers.late_events(), 0);
        WorkerMessenger::close(&mut worker).await;
    })
    .unwrap();
}
