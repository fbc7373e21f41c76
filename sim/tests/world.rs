//! What a world promises: one seed one run, nothing left behind, and a crash that says nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::Env;
use seriatim_core::identity::TopicPartition;
use seriatim_core::index::Backend;
use seriatim_core::transport::{
    Assignor, Commit, Group, GroupConfig, Outgoing, Polled, Poller, Producer, ProducerConfig, Transport,
};
use seriatim_sim::checkers::{CheckOptions, check};
use seriatim_sim::recorded::{RecordedTransport, no_lifecycle};
use seriatim_sim::{IndexFault, Node, RunOutcome, TraceMode, World, WorldConfig, run};

fn record(topic: &str, key: String) -> Outgoing {
    let (key, value) = (Some(Bytes::from(key.clone())), Some(Bytes::from(key)));
    Outgoing { topic: topic.into(), partition: None, key, value, headers: Vec::new() }
}

fn quick_group(topic: &str) -> GroupConfig {
    GroupConfig {
        session_timeout: Duration::from_secs(6),
        heartbeat_interval: Duration::from_secs(1),
        poll_limit: Duration::from_secs(20),
        ..GroupConfig::new("g", vec![topic.into()])
    }
}

async fn produce(node: Node, count: usize) {
    let producer = node.transport().producer(ProducerConfig::default()).await.unwrap();
    for chunk in 0..count / 10 {
        let records = (0..10).map(|place| record("t", format!("k{}", (chunk * 10 + place) % 17))).collect();
        for outcome in producer.send_all(records).await.await {
            outcome.unwrap();
        }
    }
}

async fn consume(node: Node) {
    consume_with(node, quick_group("t")).await;
}

async fn consume_cooperatively(node: Node) {
    let assignors = vec![Assignor::CooperativeSticky];
    consume_with(node, GroupConfig { assignors, ..quick_group("t") }).await;
}

async fn consume_with(node: Node, config: GroupConfig) {
    let transport = RecordedTransport::new(node.transport(), node.recorder(), no_lifecycle);
    let (mut poller, group) = transport.join(config).await.unwrap();
    loop {
        match poller.poll(100, Duration::from_millis(500)).await.unwrap() {
            Polled::Records(records) => {
                node.env().sleep(Duration::from_millis(node.env().random() % 20)).await;
                let mut last = std::collections::BTreeMap::new();
                for record in &records {
                    last.insert(record.position.partition.clone(), &record.position);
                }
                let commit = |(partition, position): (TopicPartition, &seriatim_core::identity::Position)| Commit {
                    partition,
                    epoch: position.epoch,
                    offset: position.offset + 1,
                    metadata: String::new(),
                };
                group.commit(last.into_iter().map(commit).collect()).await;
            }
            Polled::Assigned(_) => {}
            Polled::Revoking { event, .. } | Polled::Lost { event, .. } => group.release(event).await.unwrap(),
        }
    }
}

/// Two consumers, one of which is crashed and restarted, and a producer.
async fn busy(world: World) -> u64 {
    busy_with(world, consume).await
}

async fn busy_with<F: Future<Output = ()> + Send + 'static>(world: World, consume: fn(Node) -> F) -> u64 {
    world.create_topic("t", 4);
    world.spawn("a", consume);
    world.spawn("b", consume);
    world.spawn("p", |node| produce(node, 500));
    world.sleep(Duration::from_secs(5)).await;
    world.crash("b");
    world.sleep(Duration::from_secs(2)).await;
    world.restart("b");
    let quiet = |world: &World| (world.lag("g", "t") > 0).then(|| format!("lag {}", world.lag("g", "t")));
    world.quiet(Duration::from_secs(60), quiet).await.unwrap();
    world.log("t").values().map(|log| log.len() as u64).sum()
}

fn full() -> WorldConfig {
    WorldConfig { trace: TraceMode::Full, ..WorldConfig::default() }
}

#[test]
fn a_seed_gives_the_same_run_again_and_another_seed_another() {
    let outcomes: Vec<RunOutcome<u64>> = [11, 11, 12].into_iter().map(|seed| run(seed, full(), busy)).collect();
    for outcome in &outcomes {
        assert_eq!(outcome.result, Ok(500), "{:#?}", outcome.trace.iter().rev().take(30).collect::<Vec<_>>());
    }
    let [first, again, other] = &outcomes[..] else { unreachable!() };
    let difference = first.trace.iter().zip(&again.trace).find(|(one, two)| one != two);
    assert_eq!(difference, None);
    assert_eq!(first.hash, again.hash);
    assert_eq!(first.recorder.as_ref().unwrap().hash(), again.recorder.as_ref().unwrap().hash());
    assert_ne!(first.hash, other.hash);
}

#[test]
fn cooperative_runs_are_without_fault_and_come_again_too() {
    let once = |seed| run(seed, full(), |world| busy_with(world, consume_cooperatively));
    for seed in 11..31 {
        let outcome = once(seed);
        assert_eq!(outcome.result, Ok(500), "seed {seed}");
        let recorder = outcome.recorder.as_ref().unwrap();
        assert_eq!(check(&recorder.events(), &CheckOptions::default()), [], "seed {seed}");
        if seed == 11 {
            assert_eq!((outcome.hash, recorder.hash()), (once(seed).hash, once(seed).recorder.unwrap().hash()));
        }
    }
}

#[test]
fn how_much_of_the_trace_is_kept_does_not_change_the_run() {
    let ring = run(11, WorldConfig { trace: TraceMode::Ring(0), ..WorldConfig::default() }, busy);
    assert_eq!(ring.hash, run(11, full(), busy).hash);
    assert!(ring.trace.is_empty());
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

#[test]
fn thousands_of_runs_leave_nothing_behind() {
    let tiny = |seed| {
        run(seed, WorldConfig { trace: TraceMode::Ring(10), ..WorldConfig::default() }, |world| async move {
            world.create_topic("t", 1);
            let kept = world.clone();
            // So may a hook.
            let hooked = world.clone();
            world.on_index(Some(Box::new(move |_, _| {
                hooked.now();
                IndexFault::default()
            })));
            world.spawn("consumer", move |node| {
                // A program that holds the world, and a task that never ends and holds 10 KiB.
                let (kept, ballast) = (kept.clone(), vec![1_u8; 10_240]);
                node.env().spawn(async move {
                    std::future::pending::<()>().await;
                    drop((kept, ballast));
                });
                consume(node)
            });
            world.sleep(Duration::from_millis(20)).await;
        })
    };
    for seed in 0..1_000 {
        tiny(seed).unwrap();
    }
    let before = resident_kib();
    for seed in 0..9_000 {
        tiny(seed).unwrap();
    }
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 16 * 1024, "9,000 runs left {grown} KiB behind");
}

#[test]
fn a_crashed_process_says_nothing_more() {
    let outcome = run(5, full(), |world| async move {
        world.create_topic("t", 1);
        world.spawn("p", |node| produce(node, 50));
        world.spawn("victim", |node: Node| async move {
            let (mut poller, group) = node.transport().join(quick_group("t")).await.unwrap();
            let producer = node.transport().producer(ProducerConfig::default()).await.unwrap();
            /// What a destructor might try.
            struct Graceful(Node, seriatim_sim::SimGroup);
            impl Drop for Graceful {
                fn drop(&mut self) {
                    let group = self.1.clone();
                    self.0.env().spawn(async move { group.leave().await });
                }
            }
            let _graceful = Graceful(node.clone(), group.clone());
            loop {
                if let Polled::Records(records) = poller.poll(10, Duration::from_secs(1)).await.unwrap() {
                    for record in records {
                        producer
                            .send_all(vec![Outgoing {
                                topic: "t".into(),
                                partition: Some(0),
                                key: None,
                                value: record.value,
                                headers: Vec::new(),
                            }])
                            .await;
                    }
                }
            }
        });
        world.sleep(Duration::from_millis(4_500)).await;
        assert!(world.in_flight("g") > 0);
        world.crash("victim");
        assert_eq!(world.in_flight("g"), 0);
        let crashed_at = world.now();
        world.sleep(Duration::from_secs(30)).await;
        crashed_at
    });
    let trace = outcome.trace.clone();
    let crashed_at = outcome.unwrap();
    let of_victim: Vec<_> = trace.iter().filter(|line| &*line.node == "victim").collect();
    assert!(of_victim.iter().any(|line| line.text.contains("Heartbeat")), "it was a member");
    let later: Vec<_> = of_victim.iter().filter(|line| line.at > crashed_at).collect();
    assert!(later.is_empty(), "{later:?}");
    assert!(!trace.iter().any(|line| line.text.contains("LeaveGroup")));
    assert!(trace.iter().any(|line| line.text.contains("SessionExpired")), "its session ran out instead");
}

#[test]
fn handles_of_a_dead_process_are_inert_in_any_hands() {
    let outcome = run(6, full(), |world| async move {
        world.create_topic("t", 1);
        let node = world.node("victim");
        let producer = node.transport().producer(ProducerConfig::default()).await.unwrap();
        let (mut poller, group) = node.transport().join(quick_group("t")).await.unwrap();
        let Polled::Assigned(assigned) = poller.poll(1, Duration::from_secs(10)).await.unwrap() else {
            panic!("it is the only member")
        };
        world.crash("victim");
        let crashed_at = world.now();
        let commit = Commit {
            partition: assigned[0].partition.clone(),
            epoch: assigned[0].epoch,
            offset: 0,
            metadata: String::new(),
        };
        let (env, index) = (node.env(), node.index());
        env.spawn(async { panic!("a dead process ran a task") });
        let ghosts: Vec<futures_util::future::BoxFuture<'_, ()>> = vec![
            Box::pin(async { drop(producer.send_all(vec![record("t", "k".into())]).await) }),
            Box::pin(async { producer.flush().await }),
            Box::pin(async { drop(group.commit(vec![commit]).await) }),
            Box::pin(async { group.leave().await }),
            Box::pin(async { drop(poller.poll(1, Duration::ZERO).await) }),
            Box::pin(async { drop(node.transport().producer(ProducerConfig::default()).await) }),
            Box::pin(async { drop(index.bulk(&[]).await) }),
            Box::pin(env.sleep(Duration::from_millis(1))),
            Box::pin(env.run_blocking(Duration::ZERO, || panic!("a dead process worked"))),
        ];
        let any = futures_util::future::select_all(ghosts);
        let late = std::pin::pin!(world.sleep(Duration::from_secs(60)));
        let ended = futures_util::future::select(late, any).await;
        assert!(matches!(ended, futures_util::future::Either::Left(_)), "a dead handle answered");
        crashed_at
    });
    let trace = outcome.trace.clone();
    let crashed_at = outcome.unwrap();
    let ghostly: Vec<_> = trace.iter().filter(|line| &*line.node == "victim" && line.at > crashed_at).collect();
    assert!(ghostly.is_empty(), "{ghostly:?}");
}

#[test]
fn a_stopped_program_ends_by_itself_and_a_deaf_one_does_not() {
    run(1, full(), |world| async move {
        world.spawn("polite", |node: Node| async move { node.stopping().await });
        world.spawn("deaf", |node: Node| async move {
            loop {
                node.env().sleep(Duration::from_secs(1)).await;
            }
        });
        world.sleep(Duration::from_secs(1)).await;
        assert!(!world.has_exited("polite"));
        assert!(world.stop("polite", Duration::from_secs(1)).await);
        assert!(!world.stop("deaf", Duration::from_secs(5)).await);
        world.restart("polite");
        assert!(!world.has_exited("polite") && world.is_alive("polite"));
    })
    .unwrap();
}

#[test]
fn a_failure_tells_its_seed_its_message_and_what_was_waited_for() {
    let outcome = run(42, full(), |world| async move {
        world.spawn("bad", |_| async { panic!("the stage fell over") });
        world.sleep(Duration::from_secs(1)).await;
    });
    let failure = outcome.result.unwrap_err().to_string();
    assert!(failure.contains("seed 42") && failure.contains("the stage fell over"), "{failure}");
    let limited = WorldConfig { time_limit: Duration::from_secs(5), ..WorldConfig::default() };
    let outcome = run(1, limited, |_| std::future::pending::<()>());
    assert!(outcome.result.unwrap_err().message.contains("did not end within 5s"));
}

#[test]
fn a_program_that_polls_without_waiting_fails_the_run() {
    let outcome = run(1, full(), |world| async move {
        world.create_topic("t", 1);
        world.spawn("spinner", |node: Node| async move {
            let (mut poller, _group) = node.transport().join(quick_group("t")).await.unwrap();
            loop {
                poller.poll(1, Duration::ZERO).await.unwrap();
            }
        });
        world.sleep(Duration::from_secs(1)).await;
    });
    let message = outcome.result.unwrap_err().message;
    assert!(message.contains("without waiting") && message.contains("spinner"), "{message}");
}

#[test]
fn wall_clocks_differ_by_node_and_drift() {
    run(1, full(), |world| async move {
        let (one, two) = (world.node("one").env(), world.node("two").env());
        assert_eq!(one.wall_micros(), two.wall_micros());
        world.set_wall_clock("two", -5_000_000, 1_000);
        world.sleep(Duration::from_secs(100)).await;
        assert_eq!(one.wall_micros() - two.wall_micros(), 5_000_000 - 100_000);
    })
    .unwrap();
}

#[test]
fn requests_outlive_their_sender_and_a_cut_link_loses_them() {
    run(3, full(), |world| async move {
        world.create_topic("t", 1);
        let send = |node: Node| async move {
            let producer = node.transport().producer(ProducerConfig::default()).await.unwrap();
            let delivery = producer.send_all(vec![record("t", "k".into())]).await;
            node.env().sleep(Duration::from_millis(2)).await;
            drop(delivery);
            node.env().sleep(Duration::from_secs(1_000)).await;
        };
        world.spawn("dying", send);
        // The record leaves after its linger of a millisecond; a way takes at most two.
        while !world.trace().iter().any(|line| line.text.contains("-> 0 Produce")) {
            world.sleep(Duration::from_micros(100)).await;
        }
        world.crash("dying");
        assert_eq!(world.log("t").values().map(Vec::len).sum::<usize>(), 0);
        world.sleep(Duration::from_millis(5)).await;
        assert_eq!(world.log("t").values().map(Vec::len).sum::<usize>(), 1);

        let partition = TopicPartition::new(Arc::from("t"), 0);
        let node = world.node("cut");
        let producer = node.transport().producer(ProducerConfig::default()).await.unwrap();
        producer.send_all(vec![record("t", "k".into())]).await.await.remove(0).unwrap();
        world.cut_link("cut", true, true);
        let delivery = producer.send_all(vec![record("t", "k".into())]).await;
        world.sleep(Duration::from_secs(30)).await;
        assert_eq!(world.watermarks(&partition).unwrap().end, 2);
        world.cut_link("cut", false, false);
        delivery.await.remove(0).unwrap();
        // Answers are lost, so the batch is sent again; it is appended once.
        world.lose_answers("cut", 1);
        producer.send_all(vec![record("t", "k".into())]).await.await.remove(0).unwrap();
        assert_eq!(world.watermarks(&partition).unwrap().end, 4);
    })
    .unwrap();
}
