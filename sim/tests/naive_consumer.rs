//! Testing a Kafka consumer of your own: two ways of writing one, the same crashes and rebalances, and what comes out.
//!
//! Both read `orders` in a group and bill each order through the search backend. [`naive`] commits what it polled and
//! then works, which reads well and loses orders. [`careful`] works and then commits, and drains before it gives
//! partitions back. Neither knows that it is simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::Env;
use seriatim_core::index::{Action, Backend, IndexOp};
use seriatim_core::transport::{
    Commit, Group, GroupConfig, Outgoing, Polled, Poller, Producer, ProducerConfig, Record, Transport,
};
use seriatim_sim::rng::Concern;
use seriatim_sim::{Node, RunOutcome, World, WorldConfig, run};

const ORDERS: usize = 300;

/// Commits what it polled, then works.
async fn naive(node: Node) {
    let (mut poller, group) = node.transport().join(orders_group()).await.expect("the group has a name");
    while !node.is_stopping() {
        match poller.poll(20, Duration::from_millis(200)).await.expect("the member is open") {
            Polled::Records(records) => {
                group.commit(after(&records)).await;
                for record in &records {
                    bill(&node, record).await;
                }
            }
            Polled::Assigned(_) => {}
            Polled::Revoking { event, .. } | Polled::Lost { event, .. } => {
                group.release(event).await.expect("it is released once");
            }
        }
    }
    group.leave().await;
}

/// Works, then commits; so an order may be billed twice, and never not at all.
async fn careful(node: Node) {
    let (mut poller, group) = node.transport().join(orders_group()).await.expect("the group has a name");
    while !node.is_stopping() {
        match poller.poll(20, Duration::from_millis(200)).await.expect("the member is open") {
            Polled::Records(records) => {
                for record in &records {
                    bill(&node, record).await;
                }
                // A commit that is refused belongs to the next owner, who bills again.
                group.commit(after(&records)).await;
            }
            Polled::Assigned(_) => {}
            // Nothing is in hand here: every poll's records are billed and committed before the next poll.
            Polled::Revoking { event, .. } | Polled::Lost { event, .. } => {
                group.release(event).await.expect("it is released once");
            }
        }
    }
    group.leave().await;
}

fn orders_group() -> GroupConfig {
    GroupConfig {
        session_timeout: Duration::from_secs(6),
        heartbeat_interval: Duration::from_secs(1),
        poll_limit: Duration::from_secs(30),
        ..GroupConfig::new("billing", vec!["orders".into()])
    }
}

/// Commits that say: everything up to here.
fn after(records: &[Record]) -> Vec<Commit> {
    let last: BTreeMap<_, _> = records.iter().map(|record| (&record.position.partition, &record.position)).collect();
    let commit = |position: &seriatim_core::identity::Position| Commit {
        partition: position.partition.clone(),
        epoch: position.epoch,
        offset: position.offset + 1,
        metadata: String::new(),
    };
    last.into_values().map(commit).collect()
}

/// The work: it takes a while, and then the order is billed.
async fn bill(node: &Node, record: &Record) {
    node.env().sleep(Duration::from_millis(25)).await;
    let order = record.value.clone().expect("orders are not tombstones");
    let op = IndexOp {
        index: None,
        id: String::from_utf8_lossy(&order).as_ref().into(),
        version: None,
        action: Action::Upsert(order.into()),
        ticket: Default::default(),
        position: Some(record.position.clone()),
    };
    while node.index().bulk(std::slice::from_ref(&op)).await.is_err() {}
}

/// The world does not care what it runs: 300 orders, two consumers, a crash, a restart and a late joiner.
async fn scenario<F>(world: World, consumer: fn(Node) -> F) -> BTreeSet<String>
where
    F: Future<Output = ()> + Send + 'static,
{
    world.create_topic("orders", 4);
    world.spawn("one", consumer);
    world.spawn("two", consumer);
    world.spawn("shop", |node| async move {
        let producer = node.transport().producer(ProducerConfig::default()).await.expect("a broker answers");
        for number in 0..ORDERS {
            let order = Some(Bytes::from(format!("order-{number}")));
            let topic = "orders".into();
            producer
                .send_all(vec![Outgoing { topic, partition: None, key: order.clone(), value: order, headers: vec![] }])
                .await;
            node.env().sleep(Duration::from_millis(20)).await;
        }
        producer.flush().await;
    });
    let mut faults = world.stream(Concern::Faults);
    world.sleep(Duration::from_millis(faults.between(6_500, 8_500))).await;
    world.crash("one");
    world.sleep(Duration::from_millis(faults.between(0, 1_000))).await;
    world.restart("one");
    world.spawn("three", consumer);
    let lagging = |world: &World| Some(world.lag("billing", "orders")).filter(|lag| *lag > 0);
    let pending = |world: &World| match (lagging(world), world.has_exited("shop")) {
        (None, true) => None,
        (lag, done) => Some(format!("shop done: {done}, {} orders not committed", lag.unwrap_or(0))),
    };
    world.quiet(Duration::from_secs(120), pending).await.expect("everything is consumed");
    for name in ["one", "two", "three"] {
        assert!(world.stop(name, Duration::from_secs(5)).await, "{name} ends when asked");
    }
    world.index_documents().keys().map(ToString::to_string).collect()
}

fn lost(seed: u64, naively: bool) -> usize {
    let outcome: RunOutcome<BTreeSet<String>> = if naively {
        run(seed, WorldConfig::default(), |world| scenario(world, naive))
    } else {
        run(seed, WorldConfig::default(), |world| scenario(world, careful))
    };
    let billed = outcome.unwrap();
    (0..ORDERS).filter(|number| !billed.contains(&format!("order-{number}"))).count()
}

#[test]
fn committing_before_the_work_loses_orders_and_committing_after_it_does_not() {
    let seeds = 0..20;
    let losing: Vec<_> = seeds.clone().filter(|seed| lost(*seed, true) > 0).collect();
    assert!(losing.len() >= 5, "a crash in the middle of a batch loses its rest; seeds {losing:?} showed it");
    for seed in seeds {
        assert_eq!(lost(seed, false), 0, "seed {seed}");
    }
}
