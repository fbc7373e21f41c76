//! The sending task of a producer: what may go now, and what an answer means.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use seriatim_core::env::Instant;
use seriatim_core::transport::{Appended, ErrorKind, TransportError};

use super::lane::{Batch, IN_FLIGHT_MAX, Lane};
use super::{Core, State};
use crate::client::{broker_error, error_kind};
use crate::cluster::protocol::{BrokerId, ErrorCode, ProducePartition, ProducerId, Request, Response};
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
            if state.is_over() {
                return;
            }
            plan(&core, &mut state)
        };
        if plan.asks {
            core.for_metadata.notify_one();
        }
        for (broker, batches) in plan.requests {
            flights.push(send(&core, broker, batches));
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
        if let Either::Left(((broker, batches, answer), _)) = select(pin!(answered), waiting).await {
            receive(&core, broker, batches, answer);
        }
    }
}

#[derive(Default)]
struct Plan {
    requests: BTreeMap<BrokerId, Vec<Batch>>,
    /// Something is to be looked up.
    asks: bool,
    wake: Option<Instant>,
}

impl Plan {
    fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// Takes what may be sent now: one batch a partition, at most [`IN_FLIGHT_MAX`] requests a broker.
fn plan(core: &Core, state: &mut State) -> Plan {
    let now = core.client.host.now();
    let mut plan = Plan::default();
    let State { lanes, topics, in_flight, flushing, .. } = state;
    let mut more = false;
    for (partition, lane) in lanes {
        let ripe = *flushing > 0 || lane.is_ripe(&core.config, now);
        if !lane.may_send(ripe) {
            // It lingers, or its answers wake the sender.
            if !ripe && let Some(at) = lane.ripens_at(core.config.linger) {
                plan.wake_at(at);
            }
            continue;
        }
        if now < lane.not_before {
            plan.wake_at(lane.not_before);
            continue;
        }
        let topic = topics.get_mut(&partition.topic);
        // What is repeated waits for the leader to be looked up; that wakes the sender.
        if lane.has_retry() && topic.as_ref().is_some_and(|topic| topic.is_stale) {
            plan.asks = true;
            continue;
        }
        let Some(leader) = core.client.leader(partition) else {
            if let Some(topic) = topic {
                topic.is_stale = true;
            }
            plan.asks = true;
            continue;
        };
        if in_flight.get(&leader).is_some_and(|out| *out >= IN_FLIGHT_MAX) {
            continue;
        }
        plan.requests.entry(leader).or_default().push(lane.take(partition, &core.config));
        more |= lane.may_send(*flushing > 0 || lane.is_ripe(&core.config, now));
        if let Some(at) = lane.ripens_at(core.config.linger).filter(|at| *at > now) {
            plan.wake_at(at);
        }
    }
    for broker in plan.requests.keys() {
        *in_flight.entry(*broker).or_default() += 1;
    }
    // The rest of a long queue follows at once, as far as the pipeline has room.
    if more && plan.requests.keys().any(|broker| in_flight[broker] < IN_FLIGHT_MAX) {
        plan.wake_at(now);
    }
    plan
}

fn send(core: &Core, broker: BrokerId, batches: Vec<Batch>) -> Flight {
    let partitions = batches
        .iter()
        .map(|batch| ProducePartition {
            partition: batch.partition.clone(),
            producer: Some(ProducerId { epoch: batch.epoch, ..core.id }),
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
    for (batch, result) in batches.into_iter().zip(results) {
        take(core, &mut state, batch, result);
        if state.fatal.is_some() {
            break;
        }
    }
    drop(state);
    core.answered.notify_waiters();
}

/// Takes the answer, or the lack of one, for one batch.
fn take(core: &Core, state: &mut State, batch: Batch, (error, base_offset): (Option<ErrorCode>, i64)) {
    let context = || {
        format!("producing {} records to {}, sequence {}", batch.records.len(), batch.partition, batch.base_sequence)
    };
    let Some(lane) = state.lanes.get_mut(&batch.partition) else { return };
    lane.answered(&batch);
    match verdict(&batch, lane, error) {
        Verdict::Appended => {
            lane.appended();
            for (owner, offset) in batch.owners.iter().zip(base_offset..) {
                state.end(*owner, Ok(Appended { partition: batch.partition.partition, offset }));
            }
        }
        Verdict::Again => {
            lane.not_before = core.client.host.now() + core.client.host.shared.config.retry_backoff;
            // Its leader is looked up before the next try.
            if let Some(topic) = state.topics.get_mut(&batch.partition.topic) {
                topic.is_stale = true;
                core.for_metadata.notify_one();
            }
            lane.again(batch);
        }
        Verdict::Bump(code) => {
            let exhausted = TransportError::new(ErrorKind::Fatal, code.name(), context());
            if !lane.bump(batch) {
                state.fail(exhausted);
            }
        }
        Verdict::TooLarge => {
            let error = broker_error(ErrorCode::MessageTooLarge, context());
            if let Err(batch) = lane.split(batch) {
                lane.refused(&batch);
                for owner in &batch.owners {
                    state.end(*owner, Err(error.clone()));
                }
            }
        }
        Verdict::Fatal(code) => state.fail(TransportError::new(ErrorKind::Fatal, code.name(), context())),
    }
}

enum Verdict {
    Appended,
    /// As it is.
    Again,
    /// Under a new epoch.
    Bump(ErrorCode),
    /// In parts.
    TooLarge,
    Fatal(ErrorCode),
}

/// What an answer, or none, means for a batch.
fn verdict(batch: &Batch, lane: &Lane, error: Option<ErrorCode>) -> Verdict {
    match error {
        Some(ErrorCode::None) => Verdict::Appended,
        None => Verdict::Again,
        Some(ErrorCode::MessageTooLarge) => Verdict::TooLarge,
        Some(code @ (ErrorCode::OutOfOrderSequenceNumber | ErrorCode::UnknownProducerId)) => {
            // Behind an open batch this one only came before its time. Otherwise the partition and this producer
            // disagree: what the partition has of it was lost.
            if lane.overtook(batch) { Verdict::Again } else { Verdict::Bump(code) }
        }
        // Whether the topic is gone is for metadata to say.
        Some(ErrorCode::UnknownTopicOrPartition) => Verdict::Again,
        Some(code) if error_kind(code) == ErrorKind::Retriable => Verdict::Again,
        Some(code) => Verdict::Fatal(code),
    }
}

#[cfg(test)]
mod tests {
    use seriatim_core::identity::TopicPartition;
    use seriatim_core::transport::ProducerConfig;

    use super::*;
    use crate::client::producer::lane::tests::{lane, pending};

    #[test]
    fn an_answer_means_what_the_table_says() {
        let config = ProducerConfig::default();
        let mut lane = lane(2);
        lane.appended();
        let first = lane.take(&TopicPartition::new("t", 0), &config);
        lane.answered(&first);
        let check = |lane: &Lane, error, expected: &str| {
            let given = match verdict(&first, lane, error) {
                Verdict::Appended => "appended",
                Verdict::Again => "again",
                Verdict::Bump(_) => "bump",
                Verdict::TooLarge => "too large",
                Verdict::Fatal(_) => "fatal",
            };
            assert_eq!(given, expected, "{error:?}");
        };
        check(&lane, Some(ErrorCode::None), "appended");
        check(&lane, None, "again");
        check(&lane, Some(ErrorCode::NotLeaderOrFollower), "again");
        check(&lane, Some(ErrorCode::NotEnoughReplicas), "again");
        check(&lane, Some(ErrorCode::UnknownTopicOrPartition), "again");
        check(&lane, Some(ErrorCode::OutOfOrderSequenceNumber), "bump");
        check(&lane, Some(ErrorCode::UnknownProducerId), "bump");
        check(&lane, Some(ErrorCode::MessageTooLarge), "too large");
        check(&lane, Some(ErrorCode::InvalidProducerEpoch), "fatal");
        // The same behind an open batch.
        lane.push(pending(9), &config);
        let second = lane.take(&TopicPartition::new("t", 0), &config);
        lane.answered(&second);
        lane.again(first);
        assert!(matches!(verdict(&second, &lane, Some(ErrorCode::OutOfOrderSequenceNumber)), Verdict::Again));
    }
}
