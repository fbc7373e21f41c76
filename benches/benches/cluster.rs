//! The simulated Kafka cluster: requests against the plain struct, no world around it.

use std::sync::Arc;
use std::time::Duration;

use benches::line;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use seriatim_sim::cluster::protocol::{
    BrokerId, CommitPartition, ConnectionId, CreateTopic, FetchPartition, OffsetCommit, ProducePartition, Record,
    Request, Response,
};
use seriatim_sim::cluster::{Cluster, ClusterConfig};

/// Requests of one measurement.
const REQUESTS: u64 = 1_000;
const PARTITIONS: u32 = 6;
const RECORDS: usize = 10;

struct Bench {
    cluster: Cluster,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Bench { cluster: Cluster::new(ClusterConfig::default()), now: Instant::default() };
        let topic = CreateTopic { name: "t".into(), partitions: PARTITIONS, replication: 1 };
        bench.ask(Request::CreateTopics { topics: vec![topic] });
        bench
    }

    fn ask(&mut self, request: Request) -> Response {
        self.now = self.now + Duration::from_micros(100);
        let id = self.cluster.submit(self.now, ConnectionId(0), BrokerId(0), request);
        self.cluster.advance(self.now);
        let (_, response) = self.cluster.take_response(id).expect("none of these is parked");
        self.cluster.drain_answered();
        self.cluster.drain_audit();
        response
    }
}

fn partition(number: u64) -> TopicPartition {
    TopicPartition::new("t", (number % u64::from(PARTITIONS)) as i32)
}

fn produce(number: u64, records: &Arc<[Record]>) -> Request {
    let records = records.clone();
    let batch = ProducePartition { partition: partition(number), producer: None, base_sequence: 0, records };
    Request::Produce { partitions: vec![batch] }
}

fn fetch(number: u64) -> Request {
    let offset = (number / u64::from(PARTITIONS)) as i64 * RECORDS as i64;
    let part = FetchPartition { partition: partition(number), offset, records_max: RECORDS };
    Request::Fetch { max_wait: Duration::ZERO, records_max: RECORDS, partitions: vec![part] }
}

fn commit(number: u64) -> Request {
    let part = CommitPartition { partition: partition(number), offset: number as i64, metadata: None };
    let (generation, member_id) = (-1, "".into());
    Request::OffsetCommit(OffsetCommit {
        group: "g".into(),
        generation,
        member_id,
        instance_id: None,
        partitions: vec![part],
    })
}

fn cluster(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cluster");
    group.throughput(Throughput::Elements(REQUESTS));
    let record = |number| {
        let (key, value) = (Some(format!("doc-{number}").into()), Some(line(number)));
        Record { key, value, headers: Vec::new(), timestamp_millis: 0 }
    };
    let records: Arc<[Record]> = (0..RECORDS).map(record).collect();
    let produced = || {
        let mut bench = Bench::new();
        (0..REQUESTS).for_each(|number| drop(bench.ask(produce(number, &records))));
        bench
    };
    group.bench_function("produce of 10 records", |bencher| {
        let all = |bench: &mut Bench| (0..REQUESTS).for_each(|number| drop(bench.ask(produce(number, &records))));
        bencher.iter_batched_ref(Bench::new, all, BatchSize::LargeInput);
    });
    group.bench_function("fetch of 10 records", |bencher| {
        let mut bench = produced();
        bencher.iter(|| (0..REQUESTS).for_each(|number| drop(bench.ask(fetch(number)))));
    });
    group.bench_function("commit", |bencher| {
        let mut bench = produced();
        bencher.iter(|| (0..REQUESTS).for_each(|number| drop(bench.ask(commit(number)))));
    });
    group.finish();
}

criterion_group!(benches, cluster);
criterion_main!(benches);
