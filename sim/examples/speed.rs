//! How many runs, requests and records a second the simulated world gives on one thread:
//! `cargo run --release -p seriatim-sim --example speed`.

use std::time::Duration;

use bytes::Bytes;
use seriatim_core::transport::{
    Commit, Group, GroupConfig, Outgoing, Polled, Poller, Producer, ProducerConfig, Transport,
};
use seriatim_sim::history::Keep;
use seriatim_sim::{Node, TraceMode, World, WorldConfig, run};

const RECORDS: usize = 2_000;

async fn produce(node: Node) {
    let producer = node.transport().producer(ProducerConfig::default()).await.expect("a broker answers");
    for chunk in 0..RECORDS / 20 {
        let record = |place| {
            let key = Some(Bytes::from(format!("k{}", (chunk * 20 + place) % 97)));
            Outgoing {
                topic: "t".into(),
                partition: None,
                key,
                value: Some(Bytes::from_static(&[b'x'; 200])),
                headers: vec![],
            }
        };
        drop(producer.send_all((0..20).map(record).collect()).await.await);
    }
}

async fn consume(node: Node) {
    let config = GroupConfig { poll_limit: Duration::from_secs(30), ..GroupConfig::new("g", vec!["t".into()]) };
    let (mut poller, group) = node.transport().join(config).await.expect("the group has a name");
    loop {
        match poller.poll(100, Duration::from_millis(500)).await.expect("the member is open") {
            Polled::Records(records) => {
                let Some(last) = records.last() else { continue };
                let position = &last.position;
                let (partition, epoch) = (position.partition.clone(), position.epoch);
                let commit = Commit { partition, epoch, offset: position.offset + 1, metadata: String::new() };
                group.commit(vec![commit]).await;
            }
            Polled::Assigned(_) => {}
            Polled::Revoking { event, .. } | Polled::Lost { event, .. } => {
                group.release(event).await.expect("it is released once");
            }
        }
    }
}

async fn scenario(world: World) {
    world.create_topic("t", 4);
    world.spawn("a", consume);
    world.spawn("b", consume);
    world.spawn("p", produce);
    world.sleep(Duration::from_secs(60)).await;
}

#[expect(clippy::disallowed_types, reason = "it measures the machine, outside any run")]
fn main() {
    for (name, trace, history) in [
        ("ring of 200, no history", TraceMode::Ring(200), Keep::Nothing),
        ("full trace and history", TraceMode::Full, Keep::Events),
    ] {
        let start = std::time::Instant::now();
        let (mut runs, mut events) = (0_u64, 0);
        while start.elapsed() < Duration::from_secs(3) {
            let config = WorldConfig { trace, history, ..WorldConfig::default() };
            events += run(runs, config, scenario).events;
            runs += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let rate = |count: u64| (count as f64 / seconds).round();
        println!(
            "{name}: {} runs/s, each 60 s of virtual time, {RECORDS} records and {} events; {} events/s",
            rate(runs),
            events / runs,
            rate(events)
        );
    }
}
