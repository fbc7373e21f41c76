//! The background fetcher of a group member: one fetch out a broker, buffers filled up to their bound.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::OffsetReset;

use super::Client;
use super::group::Member;
use crate::cluster::protocol::{BrokerId, ErrorCode, FetchPartition, Fetched, OffsetSpec, Request, Response};
use crate::network::{NetworkError, RoundTrip};

/// Records that one fetch brings at most.
const FETCH_RECORDS_MAX: usize = 1_000;

/// A fetch on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) broker: BrokerId,
    pub(super) asked: Vec<(TopicPartition, Epoch, i64)>,
    trip: RoundTrip,
}

impl Future for Flight {
    type Output = (BrokerId, Vec<(TopicPartition, Epoch, i64)>, Result<Response, NetworkError>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = std::task::ready!(Pin::new(&mut self.trip).poll(cx));
        Poll::Ready((self.broker, std::mem::take(&mut self.asked), answer))
    }
}

/// Sends a fetch of `parts` (partition, epoch, offset, records at most) to `broker`.
pub(super) fn send(client: &Client, broker: BrokerId, parts: Vec<(TopicPartition, Epoch, i64, usize)>) -> Flight {
    let max_wait = client.host.shared.config.fetch_wait;
    let request = Request::Fetch {
        max_wait,
        records_max: FETCH_RECORDS_MAX,
        partitions: parts
            .iter()
            .map(|(partition, _, offset, room)| FetchPartition {
                partition: partition.clone(),
                offset: *offset,
                records_max: (*room).min(FETCH_RECORDS_MAX),
            })
            .collect(),
    };
    let trip = client.send(broker, request, client.request_timeout() + max_wait);
    let asked = parts.into_iter().map(|(partition, epoch, offset, _)| (partition, epoch, offset)).collect();
    Flight { broker, asked, trip }
}

/// Until the member is closed.
pub(super) async fn run(member: Arc<Member>) {
    let mut flights: FuturesUnordered<Flight> = FuturesUnordered::new();
    let mut turn = 0_usize;
    loop {
        let (plan, unknown) = {
            let mut state = member.lock();
            if state.closed {
                return;
            }
            plan(&member, &mut state, &flights, turn)
        };
        turn = turn.wrapping_add(1);
        for (broker, parts) in plan {
            flights.push(send(&member.client, broker, parts));
        }
        let mut pause = !unknown.is_empty() && member.client.refresh(unknown).await.is_err();
        let woken = pin!(member.for_fetcher.notified());
        if flights.is_empty() {
            if pause {
                select(woken, pin!(member.client.back_off())).await;
            } else {
                woken.await;
            }
            continue;
        }
        match select(woken, flights.next()).await {
            Either::Left(_) => {}
            Either::Right((Some((_, asked, Ok(Response::Fetch { partitions }))), _)) => {
                pause |= receive(&member, &asked, partitions).await;
                if pause {
                    member.client.back_off().await;
                }
            }
            Either::Right((Some((_, asked, _)), _)) => {
                let topics = topics(asked.iter().map(|(partition, ..)| partition));
                let _ = member.client.refresh(topics).await;
                member.client.back_off().await;
            }
            Either::Right((None, _)) => {}
        }
    }
}

fn topics<'a>(partitions: impl Iterator<Item = &'a TopicPartition>) -> Vec<Arc<str>> {
    let mut topics: Vec<_> = partitions.map(|partition| partition.topic.clone()).collect();
    topics.sort();
    topics.dedup();
    topics
}

type Plan = BTreeMap<BrokerId, Vec<(TopicPartition, Epoch, i64, usize)>>;

/// What to fetch from each broker that has no fetch out, and the topics whose leaders are not known.
fn plan(
    member: &Member,
    state: &mut super::group::State,
    flights: &FuturesUnordered<Flight>,
    turn: usize,
) -> (Plan, Vec<Arc<str>>) {
    let (mut plan, mut unknown) = (Plan::new(), Vec::new());
    if state.is_held() {
        return (plan, unknown);
    }
    let prefetch = member.config.prefetch_records_max;
    for (partition, owned) in &mut state.owned {
        if owned.paused || owned.ending || owned.out_of_range {
            continue;
        }
        let Some(leader) = member.client.leader(partition) else {
            unknown.push(partition.topic.clone());
            continue;
        };
        if flights.iter().any(|flight| flight.broker == leader) {
            continue;
        }
        let room = prefetch.saturating_sub(owned.buffered);
        if room == 0 {
            owned.starved = true;
            continue;
        }
        plan.entry(leader).or_default().push((partition.clone(), owned.epoch, owned.next, room));
    }
    for parts in plan.values_mut() {
        let by = turn % parts.len();
        parts.rotate_left(by);
    }
    unknown.dedup();
    (plan, unknown)
}

/// Takes an answer. True when some partition is to be tried again after a pause.
async fn receive(member: &Member, asked: &[(TopicPartition, Epoch, i64)], answers: Vec<Fetched>) -> bool {
    let (mut stale, mut reset, mut fresh) = (Vec::new(), Vec::new(), false);
    {
        let mut state = member.lock();
        for ((partition, epoch, offset), answer) in asked.iter().zip(answers) {
            // Only under the ownership, and for the position, that was asked for.
            let current = |owned: &&mut super::group::Owned| owned.epoch == *epoch && owned.next == *offset;
            let Some(owned) = state.owned.get_mut(partition).filter(current) else { continue };
            match answer.error {
                ErrorCode::None => {
                    for slice in answer.batches {
                        owned.next = slice.next_offset();
                        owned.buffered += slice.range.len();
                        owned.buffer.push_back(slice);
                        fresh = true;
                    }
                }
                ErrorCode::OffsetOutOfRange => {
                    owned.out_of_range = true;
                    reset.push((partition.clone(), *epoch));
                }
                _ => stale.push(partition.clone()),
            }
        }
    }
    if fresh {
        member.for_poller.notify_one();
    }
    let again = !stale.is_empty();
    if again {
        // What stays unknown is asked for again by the plan.
        let _ = member.client.refresh(topics(stale.iter())).await;
    }
    for (partition, epoch) in reset {
        reset_position(member, &partition, epoch).await;
    }
    again
}

/// Finds a new position for a partition whose own is not in the log, as `auto.offset.reset` says.
async fn reset_position(member: &Member, partition: &TopicPartition, epoch: Epoch) {
    let spec = reset_spec(member.config.offset_reset);
    loop {
        let found = member.client.list_offset(partition, spec).await;
        {
            let mut state = member.lock();
            let Some(owned) = state.owned.get_mut(partition).filter(|owned| owned.epoch == epoch) else { return };
            if let Some(offset) = found {
                (owned.next, owned.out_of_range) = (offset, false);
                return;
            }
        }
        member.client.back_off().await;
    }
}

pub(super) fn reset_spec(reset: OffsetReset) -> OffsetSpec {
    match reset {
        OffsetReset::Earliest => OffsetSpec::Earliest,
        OffsetReset::Latest => OffsetSpec::Latest,
    }
}
