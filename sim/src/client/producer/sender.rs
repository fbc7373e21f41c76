//! The sending task of a producer: what may go now, and what an answer means.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;
use seriatim_core::env::Instant;
use seriatim_core::identity::TopicPartition;
use seriatim_core::transport::{Appended, ErrorKind, TransportError};

use super::{BATCH_RECORDS_MAX, Batch, Core, IN_FLIGHT_MAX, Lane, State, UNKNOWN_TOPIC_TRIES_MAX};
use crate::client::{broker_error, error_kind};
use crate::cluster::protocol::{BrokerId, ErrorCode, ProducePartition, Request, Response};
use crate::network::{NetworkError, RoundTrip};

/// A produce request on its way.
struct Flight {
    broker: BrokerId,
    batches: Vec<Batch>,
    trip: RoundTrip,
}

impl Future for Flight {
    type Output = (BrokerId, Vec<Batch>, Result<Response, NetworkError>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.trip).poll(cx));
        Poll::Ready((self.broker, std::mem::take(&mut self.batches), answer))
    }
}

/// The sending task, until the last handle is dropped or the producer fails for good.
pub(super) async fn run(core: Arc<Core>) {
    let mut flights: FuturesUnordered<Flight> = FuturesUnordered::new();
    loop {
        let plan = {
            let mut state = core.lock();
            if state.closed || state.fatal.is_some() {
                return;
            }
            plan(&core, &mut state)
        };
        for (broker, batches) in plan.requests {
            flights.push(send(&core, broker, batches));
        }
        if !plan.unknown.is_empty() && core.client.refresh(plan.unknown).await.is_err() {
            core.client.back_off().await;
        }
        let woken = pin!(core.for_sender.notified());
        let executor = &core.client.host.shared.executor;
        let timer = async {
            match plan.wake {
                Some(at) => executor.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let answered = async {
            match flights.next().await {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        };
        let timer = pin!(timer);
        let waiting = select(woken, timer);
        if let futures_util::future::Either::Left(((broker, batches, answer), _)) =
            select(pin!(answered), waiting).await
        {
            receive(&core, broker, batches, answer);
        }
    }
}

#[derive(Default)]
struct Plan {
    requests: BTreeMap<BrokerId, Vec<Batch>>,
    /// Topics without a known leader.
    unknown: Vec<Arc<str>>,
    wake: Option<Instant>,
}

/// Takes what may be sent now: one batch a partition, at most [`IN_FLIGHT_MAX`] requests a broker.
fn plan(core: &Core, state: &mut State) -> Plan {
    let now = core.client.host.now();
    let mut plan = Plan::default();
    let lingering = state.flushing == 0 && state.linger_until.is_some_and(|until| now < until);
    if lingering {
        plan.wake = state.linger_until;
    } else {
        state.linger_until = None;
    }
    let mut more = false;
    for (partition, lane) in &mut state.lanes {
        if !lane.may_send(lingering) {
            continue;
        }
        if now < lane.not_before {
            plan.wake = Some(plan.wake.map_or(lane.not_before, |wake| wake.min(lane.not_before)));
            continue;
        }
        let Some(leader) = core.client.leader(partition) else {
            lane.not_before = now + core.client.host.shared.config.retry_backoff;
            plan.wake = Some(plan.wake.map_or(lane.not_before, |wake| wake.min(lane.not_before)));
            plan.unknown.push(partition.topic.clone());
            continue;
        };
        if state.in_flight.get(&leader).is_some_and(|out| *out >= IN_FLIGHT_MAX) {
            continue;
        }
        let batch = match lane.retry.pop_front() {
            Some(batch) => batch,
            None => lane.batch(partition, core.batch_bytes_max()),
        };
        more |= !lane.queue.is_empty() && lane.retry.is_empty() && lane.window.len() < IN_FLIGHT_MAX;
        lane.out.insert(batch.base_sequence);
        plan.requests.entry(leader).or_default().push(batch);
    }
    for broker in plan.requests.keys() {
        *state.in_flight.entry(*broker).or_default() += 1;
    }
    if more && !lingering {
        // The rest of a long queue follows at once, as far as the pipeline has room.
        state.linger_until = Some(now);
        if plan.requests.keys().any(|broker| state.in_flight[broker] < IN_FLIGHT_MAX) {
            plan.wake = Some(now);
        }
    }
    plan.unknown.dedup();
    plan
}

impl Lane {
    /// The next batch from the queue.
    fn batch(&mut self, partition: &TopicPartition, bytes_max: usize) -> Batch {
        let (mut records, mut owners, mut bytes) = (Vec::new(), Vec::new(), 0);
        while records.len() < BATCH_RECORDS_MAX
            && let Some(next) = self.queue.front()
            && (records.is_empty() || bytes + next.bytes <= bytes_max)
            && let Some(pending) = self.queue.pop_front()
        {
            bytes += pending.bytes;
            records.push(pending.record);
            owners.push(pending.owner);
        }
        let base_sequence = self.next_sequence;
        let count = i32::try_from(records.len()).expect("at most BATCH_RECORDS_MAX");
        self.next_sequence = if i32::MAX - count < base_sequence {
            // Past i32::MAX the sequence goes on at 0.
            count - (i32::MAX - base_sequence) - 1
        } else {
            base_sequence + count
        };
        self.window.push_back(base_sequence);
        Batch { partition: partition.clone(), base_sequence, records: records.into(), owners, tries: 0 }
    }

    /// Whether the partition has something that may go: what is repeated goes first, once nothing of it is out, and new
    /// batches only while the broker would still know every open one.
    fn may_send(&self, lingering: bool) -> bool {
        if self.retry.is_empty() {
            !self.queue.is_empty() && !lingering && self.window.len() < IN_FLIGHT_MAX
        } else {
            self.out.is_empty()
        }
    }

    /// Forgets the answered batches that no open one stands before.
    fn slide_window(&mut self) {
        while let Some(first) = self.window.front()
            && !self.out.contains(first)
            && self.retry.iter().all(|batch| batch.base_sequence != *first)
        {
            self.window.pop_front();
        }
    }
}

fn send(core: &Core, broker: BrokerId, batches: Vec<Batch>) -> Flight {
    let partitions = batches
        .iter()
        .map(|batch| ProducePartition {
            partition: batch.partition.clone(),
            producer: Some(core.id),
            base_sequence: batch.base_sequence,
            records: batch.records.clone(),
        })
        .collect();
    let trip = core.client.send(broker, Request::Produce { partitions }, core.client.request_timeout());
    Flight { broker, batches, trip }
}

/// Takes the answer of one request.
fn receive(core: &Core, broker: BrokerId, batches: Vec<Batch>, answer: Result<Response, NetworkError>) {
    let mut state = core.lock();
    if let Some(out) = state.in_flight.get_mut(&broker) {
        *out -= 1;
    }
    let results = match answer {
        Ok(Response::Produce { partitions }) => {
            partitions.into_iter().map(|produced| (Some(produced.error), produced.base_offset)).collect()
        }
        _ => vec![(None, -1); batches.len()],
    };
    for (mut batch, (error, base_offset)) in batches.into_iter().zip(results) {
        let partition = batch.partition.clone();
        let Some(lane) = state.lanes.get_mut(&partition) else { continue };
        lane.out.remove(&batch.base_sequence);
        batch.tries += 1;
        match verdict(&batch, lane, error) {
            Verdict::Appended => {
                for (owner, offset) in batch.owners.iter().zip(base_offset..) {
                    state.settle(*owner, Ok(Appended { partition: batch.partition.partition, offset }));
                }
                state.held -= batch.owners.len();
            }
            Verdict::Again => {
                lane.not_before = core.client.host.now() + core.client.host.shared.config.retry_backoff;
                let place = lane.retry.partition_point(|other| other.base_sequence < batch.base_sequence);
                // Its leader is looked up again before the next try.
                core.client.forget_topic(&batch.partition.topic);
                lane.retry.insert(place, batch);
            }
            Verdict::Refused(error) => {
                for owner in &batch.owners {
                    state.settle(*owner, Err(error.clone()));
                }
                state.held -= batch.owners.len();
            }
            Verdict::Fatal(error) => {
                state.fail(error);
                break;
            }
        }
        if let Some(lane) = state.lanes.get_mut(&partition) {
            lane.slide_window();
        }
    }
    drop(state);
    core.answered.notify_waiters();
}

enum Verdict {
    Appended,
    Again,
    Refused(TransportError),
    Fatal(TransportError),
}

/// What an answer, or none, means for a batch.
fn verdict(batch: &Batch, lane: &Lane, error: Option<ErrorCode>) -> Verdict {
    let context = || {
        format!("producing {} records to {}, sequence {}", batch.records.len(), batch.partition, batch.base_sequence)
    };
    // An earlier batch of the partition is open: this one only came before its time.
    let overtook = lane.out.first().is_some_and(|first| *first < batch.base_sequence)
        || lane.retry.front().is_some_and(|first| first.base_sequence < batch.base_sequence);
    match error {
        Some(ErrorCode::None) => Verdict::Appended,
        None => Verdict::Again,
        Some(ErrorCode::OutOfOrderSequenceNumber) if overtook => Verdict::Again,
        Some(code @ ErrorCode::UnknownTopicOrPartition) if batch.tries >= UNKNOWN_TOPIC_TRIES_MAX => {
            Verdict::Refused(broker_error(code, context()))
        }
        Some(ErrorCode::UnknownTopicOrPartition) => Verdict::Again,
        Some(code) if error_kind(code) == ErrorKind::Retriable => Verdict::Again,
        // A hole in the sequences cannot be mended by this producer.
        Some(code) => Verdict::Fatal(TransportError::new(ErrorKind::Fatal, code.name(), context())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::producer::{Owner, Pending};
    use crate::cluster::protocol::Record;

    fn at() -> TopicPartition {
        TopicPartition::new("t", 0)
    }

    /// A lane with `sent` batches of one record out and one record in the queue.
    fn lane(sent: usize) -> Lane {
        let mut lane = Lane::default();
        for place in 0..=sent {
            let record = Record { key: None, value: None, headers: Vec::new(), timestamp_millis: 0 };
            lane.queue.push_back(Pending { record, bytes: 1, owner: Owner { call: 0, place } });
            if place < sent {
                let batch = lane.batch(&at(), 100);
                lane.out.insert(batch.base_sequence);
            }
        }
        lane
    }

    fn answered(lane: &mut Lane, sequence: i32) {
        lane.out.remove(&sequence);
        lane.slide_window();
    }

    fn batch(base_sequence: i32, tries: u32) -> Batch {
        Batch { partition: at(), base_sequence, records: Vec::new().into(), owners: Vec::new(), tries }
    }

    #[test]
    fn a_lane_is_full_when_the_broker_would_forget_its_oldest_open_batch() {
        let mut lane = lane(IN_FLIGHT_MAX);
        assert!(!lane.may_send(false));
        // Answers of later batches make no room.
        answered(&mut lane, 1);
        answered(&mut lane, 2);
        assert!(!lane.may_send(false));
        answered(&mut lane, 0);
        assert!(lane.may_send(false) && !lane.may_send(true));
        assert_eq!(lane.window, [3, 4]);
    }

    #[test]
    fn what_is_repeated_waits_for_everything_out_and_new_batches_wait_for_it() {
        let mut lane = lane(2);
        lane.out.remove(&0);
        lane.retry.push_back(batch(0, 1));
        lane.slide_window();
        assert!(!lane.may_send(false), "batch 1 is out");
        answered(&mut lane, 1);
        assert!(lane.may_send(true), "a repeat does not linger");
        assert_eq!(lane.window, [0, 1]);
    }

    #[test]
    fn an_answer_means_what_the_table_says() {
        let check = |lane: &Lane, batch: &Batch, error, expected: &str| {
            let given = match verdict(batch, lane, error) {
                Verdict::Appended => "appended",
                Verdict::Again => "again",
                Verdict::Refused(_) => "refused",
                Verdict::Fatal(_) => "fatal",
            };
            assert_eq!(given, expected, "{error:?}");
        };
        let (alone, behind) = (lane(0), lane(1));
        let gap = Some(ErrorCode::OutOfOrderSequenceNumber);
        let unknown = Some(ErrorCode::UnknownTopicOrPartition);
        check(&alone, &batch(1, 1), Some(ErrorCode::None), "appended");
        check(&alone, &batch(1, 1), None, "again");
        check(&alone, &batch(1, 1), Some(ErrorCode::NotLeaderOrFollower), "again");
        check(&behind, &batch(1, 1), gap, "again");
        check(&alone, &batch(1, 1), gap, "fatal");
        check(&alone, &batch(1, 1), unknown, "again");
        check(&alone, &batch(1, UNKNOWN_TOPIC_TRIES_MAX), unknown, "refused");
        check(&alone, &batch(1, 1), Some(ErrorCode::InvalidProducerEpoch), "fatal");
    }
}
