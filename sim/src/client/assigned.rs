//! A consumer of given partitions, outside any group: one fetch out a broker, sent from within `poll`.

use std::collections::{BTreeMap, VecDeque};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::select;
use seriatim_core::identity::{Epoch, TopicPartition};
use seriatim_core::transport::{Assigned, ErrorKind, Record, TransportError};

use super::fetcher::{self, Flight};
use super::group::to_record;
use super::{Client, broker_error};
use crate::cluster::protocol::{BrokerId, ErrorCode, Fetched, OffsetSpec, Response};
use crate::network::NetworkError;

/// Records that are fetched ahead of the caller, a partition.
const AHEAD_MAX: usize = 10_000;

/// A simulated consumer by assignment.
#[derive(Debug)]
pub struct SimAssigned {
    client: Client,
    parts: Vec<Part>,
    flights: Vec<Flight>,
    /// Which partition is served first; moves on.
    turn: usize,
}

#[derive(Debug)]
struct Part {
    partition: TopicPartition,
    /// The next offset that the caller will read.
    position: i64,
    /// The next offset to fetch.
    next: i64,
    buffer: VecDeque<Record>,
}

type Answer = (BrokerId, Vec<(TopicPartition, Epoch, i64)>, Result<Response, NetworkError>);

impl SimAssigned {
    pub(super) fn new(client: Client, from: Vec<(TopicPartition, i64)>) -> Self {
        let part = |(partition, position)| Part { partition, position, next: position, buffer: VecDeque::new() };
        SimAssigned { client, parts: from.into_iter().map(part).collect(), flights: Vec::new(), turn: 0 }
    }

    fn take(&mut self, limit: usize) -> Vec<Record> {
        let mut records = Vec::new();
        let count = self.parts.len();
        for place in 0..count {
            let part = &mut self.parts[(self.turn + place) % count];
            while records.len() < limit
                && let Some(record) = part.buffer.pop_front()
            {
                part.position = record.position.offset + 1;
                records.push(record);
            }
        }
        self.turn = if records.is_empty() { self.turn } else { (self.turn + 1) % count };
        records
    }

    /// Sends a fetch to each leader without one. False when some leader is not known.
    fn fetch(&mut self) -> bool {
        let mut plan: BTreeMap<BrokerId, Vec<_>> = BTreeMap::new();
        let mut all_known = true;
        for part in &self.parts {
            let Some(leader) = self.client.leader(&part.partition) else {
                all_known = false;
                continue;
            };
            let room = AHEAD_MAX.saturating_sub(part.buffer.len());
            if room > 0 && !self.flights.iter().any(|flight| flight.broker == leader) {
                plan.entry(leader).or_default().push((part.partition.clone(), Epoch(0), part.next, room));
            }
        }
        for (broker, mut parts) in plan {
            let by = self.turn % parts.len();
            parts.rotate_left(by);
            self.flights.push(fetcher::send(&self.client, broker, parts));
        }
        all_known
    }

    /// Takes one answer. An error is one that no later poll mends.
    async fn receive(&mut self, (_, asked, answer): Answer) -> Result<(), TransportError> {
        let Ok(Response::Fetch { partitions }) = answer else {
            self.refresh().await;
            return Ok(());
        };
        for ((partition, _, offset), answer) in asked.into_iter().zip(partitions) {
            let Some(part) = self.parts.iter_mut().find(|part| part.partition == partition) else { continue };
            if part.next != offset {
                continue;
            }
            match answer.error {
                ErrorCode::None => part.accept(&answer),
                ErrorCode::OffsetOutOfRange => self.out_of_range(&partition).await?,
                ErrorCode::NotLeaderOrFollower => self.refresh().await,
                code => {
                    self.refresh().await;
                    if self.client.leader(&partition).is_none() {
                        return Err(broker_error(code, format!("reading {partition}")));
                    }
                }
            }
        }
        Ok(())
    }

    async fn refresh(&self) {
        let mut topics: Vec<_> = self.parts.iter().map(|part| part.partition.topic.clone()).collect();
        topics.sort();
        topics.dedup();
        if self.client.refresh(topics).await.is_err() {
            self.client.back_off().await;
        }
    }

    /// Goes on at the oldest record when those before it are gone; a position past the end is an error.
    async fn out_of_range(&mut self, partition: &TopicPartition) -> Result<(), TransportError> {
        let Some(start) = self.client.list_offset(partition, OffsetSpec::Earliest).await else { return Ok(()) };
        let Some(part) = self.parts.iter_mut().find(|part| part.partition == *partition) else { return Ok(()) };
        if part.next < start {
            part.next = start;
            if part.buffer.is_empty() {
                part.position = start;
            }
            return Ok(());
        }
        let context = format!("reading {partition} at {}, past its end: was the topic made anew?", part.next);
        Err(TransportError::new(ErrorKind::Refused, ErrorCode::OffsetOutOfRange.name(), context))
    }
}

impl Part {
    fn accept(&mut self, answer: &Fetched) {
        for slice in &answer.batches {
            self.next = slice.next_offset();
            let records = slice.iter().map(|(offset, record)| to_record(&self.partition, Epoch(0), offset, record));
            self.buffer.extend(records);
        }
    }
}

impl Assigned for SimAssigned {
    async fn poll(&mut self, records_max: usize, wait: Duration) -> Result<Vec<Record>, TransportError> {
        let host = self.client.host.clone();
        if !host.enter() {
            std::future::pending::<()>().await;
        }
        let deadline = host.now() + wait;
        let mut patience = pin!(host.shared.executor.sleep_until(deadline));
        let (mut unknown, mut looked) = (0, false);
        loop {
            let records = self.take(records_max);
            // A poll without patience still sends a fetch, and takes the answer of an earlier one.
            if !records.is_empty() || (looked && host.now() >= deadline) {
                return Ok(records);
            }
            looked = true;
            if !self.fetch() {
                self.refresh().await;
                unknown += 1;
                if unknown > 3 {
                    let code = ErrorCode::UnknownTopicOrPartition;
                    return Err(broker_error(code, format!("reading {:?}", self.parts.first().map(|p| &p.partition))));
                }
                if self.flights.is_empty() {
                    self.client.back_off().await;
                    continue;
                }
            }
            let flights = &mut self.flights;
            let arrival = std::future::poll_fn(|cx| {
                for place in 0..flights.len() {
                    if let Poll::Ready(answer) = Pin::new(&mut flights[place]).poll(cx) {
                        flights.swap_remove(place);
                        return Poll::Ready(answer);
                    }
                }
                Poll::Pending
            });
            let arrived = match select(pin!(arrival), patience.as_mut()).await {
                futures_util::future::Either::Left((answer, _)) => Some(answer),
                futures_util::future::Either::Right(_) => None,
            };
            if let Some(answer) = arrived {
                self.receive(answer).await?;
            }
        }
    }

    fn positions(&self) -> Vec<(TopicPartition, i64)> {
        self.parts.iter().map(|part| (part.partition.clone(), part.position)).collect()
    }
}
