//! The worker: takes documents, sends them through its pipeline, hands over what came of them.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use compact_str::CompactString;
use futures_util::future::{Either, FutureExt, select};

use crate::document::{Document, Original};
use crate::env::{Env, Instant};
use crate::event::{Event, EventKind, FamilyDigest};
use crate::identity::{Envelope, Ticket};
use crate::machines::hlc::OutputVersions;
use crate::messenger::{DeadLetter, Emission, MessengerError, Outbound, Payload, Work, WorkerMessenger};
use crate::pipeline::{Pipeline, PipelineOutput, PipelineSpec};
use crate::stop::Stop;

/// Limits of a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Documents taken at once.
    pub poll_records_max: usize,
    /// Outputs that are collected before they are handed over.
    pub hand_over_outputs_max: usize,
    /// How long a finished output may wait for others.
    pub hand_over_wait: Duration,
    /// How long a waiting stage may go on after a request to stop.
    pub stop_limit: Duration,
    /// Whether a CREATE event is sent for each child. Completion does not need them.
    pub create_events: bool,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        WorkerConfig {
            poll_records_max: 256,
            hand_over_outputs_max: 256,
            hand_over_wait: Duration::from_millis(5),
            stop_limit: Duration::from_secs(10),
            create_events: true,
        }
    }
}

/// A worker with its own instance of every stage.
#[derive(Debug)]
pub struct Worker<E, M> {
    env: E,
    messenger: M,
    pipeline: Pipeline,
    config: WorkerConfig,
    finished: Vec<Emission>,
    finished_outputs: usize,
    oldest_finished: Instant,
    stop: Stop,
    draining: bool,
}

/// What the pipeline gave.
enum Next {
    Output(PipelineOutput),
    End,
    Abandoned,
}

impl<E: Env, M: WorkerMessenger> Worker<E, M> {
    /// A worker for `pipeline` that works until `stop` is requested.
    pub fn new(env: E, messenger: M, pipeline: &PipelineSpec, config: WorkerConfig, stop: Stop) -> Self {
        let oldest_finished = env.now();
        let pipeline = Pipeline::new(pipeline);
        Worker {
            env,
            messenger,
            pipeline,
            config,
            finished: Vec::new(),
            finished_outputs: 0,
            oldest_finished,
            stop,
            draining: false,
        }
    }

    /// Works until asked to stop, then ends cleanly; or until the messenger can go on no more.
    pub async fn run(mut self) -> Result<(), MessengerError> {
        let stop = self.stop.clone();
        loop {
            self.drain_when_asked().await?;
            let poll = self.messenger.poll(self.config.poll_records_max);
            let polled = if self.draining {
                poll.await?
            } else {
                match select(pin!(stop.requested()), pin!(poll)).await {
                    Either::Left(_) => continue,
                    Either::Right((polled, _)) => polled?,
                }
            };
            let Some(batch) = polled else { break };
            for work in batch {
                self.drain_when_asked().await?;
                // Without a position nothing is done again, so that nothing has to be finished.
                if !self.draining || work.claim.position().is_some() {
                    self.process(work).await?;
                }
            }
            self.hand_over().await?;
        }
        self.messenger.close().await;
        Ok(())
    }

    /// Asked to stop, it hands over what is finished and takes only what has to be finished still.
    async fn drain_when_asked(&mut self) -> Result<(), MessengerError> {
        if self.draining || !self.stop.is_requested() {
            return Ok(());
        }
        self.draining = true;
        self.hand_over().await?;
        self.messenger.drain();
        Ok(())
    }

    async fn process(&mut self, work: Work) -> Result<(), MessengerError> {
        if !work.claim.is_active() {
            return Ok(());
        }
        match work.payload {
            Payload::Document(document, envelope) => self.enrich(document, envelope, work.claim).await,
            Payload::Undecodable { envelope, key, value, reason } => {
                let emission = undecodable(work.claim, envelope, key, value, &reason, self.env.wall_micros());
                self.finish(emission).await
            }
        }
    }

    /// Sends one document through the pipeline. A family larger than one hand-over leaves in parts of its claim.
    async fn enrich(
        &mut self,
        document: Document,
        source: Envelope,
        claim: crate::intake::Claim,
    ) -> Result<(), MessengerError> {
        let mut family = Family::new(&source, claim.position(), self.env.random());
        let original = document.original();
        let mut emission =
            Emission { claim, outputs: Vec::with_capacity(1), events: Vec::new(), dead_letters: Vec::new() };
        self.pipeline.start(document);
        loop {
            let output = match self.next_output().await? {
                Next::Output(output) => output,
                Next::End => return self.finish(emission).await,
                // The claim goes undone: whoever comes next does it again.
                Next::Abandoned => return Ok(()),
            };
            let wall = || self.env.wall_micros();
            family.add(output, &original, &mut emission, self.config.create_events, wall);
            if emission.outputs.len() + emission.events.len() >= 2 * self.config.hand_over_outputs_max {
                let rest = Emission {
                    claim: emission.claim.clone(),
                    outputs: Vec::new(),
                    events: Vec::new(),
                    dead_letters: Vec::new(),
                };
                let part = std::mem::replace(&mut emission, rest);
                self.finish(part).await?;
            }
        }
    }

    /// The pipeline's next output. What is finished leaves when it has waited long enough, however long this one takes;
    /// a stage that goes on waiting after a request to stop is given up after a bound.
    async fn next_output(&mut self) -> Result<Next, MessengerError> {
        // Nearly always it is there at once.
        if let Some(output) = self.pipeline.next().now_or_never() {
            return Ok(output.map_or(Next::End, Next::Output));
        }
        loop {
            let held = (!self.finished.is_empty()).then(|| self.oldest_finished + self.config.hand_over_wait);
            let patience = async {
                match held {
                    Some(until) => self.env.sleep(until.since(self.env.now())).await,
                    None => {
                        self.stop.requested().await;
                        self.env.sleep(self.config.stop_limit).await;
                    }
                }
            };
            if let Either::Left((output, _)) = select(pin!(self.pipeline.next()), pin!(patience)).await {
                return Ok(output.map_or(Next::End, Next::Output));
            }
            if held.is_none() {
                return Ok(Next::Abandoned);
            }
            self.hand_over().await?;
        }
    }

    /// Collects one emission; hands over when there are enough or the oldest has waited long enough.
    async fn finish(&mut self, emission: Emission) -> Result<(), MessengerError> {
        let now = self.env.now();
        if self.finished.is_empty() {
            self.oldest_finished = now;
        }
        // Dropped and failed outputs leave events only, and are collected too.
        self.finished_outputs += 1 + emission.outputs.len().max(emission.events.len());
        self.finished.push(emission);
        let full = self.finished_outputs >= self.config.hand_over_outputs_max;
        if full || now.since(self.oldest_finished) >= self.config.hand_over_wait {
            self.hand_over().await?;
        }
        Ok(())
    }

    /// Hands over what has passed the fence; the rest is abandoned and will be delivered to somebody again.
    async fn hand_over(&mut self) -> Result<(), MessengerError> {
        self.finished_outputs = 0;
        let mut finished = std::mem::take(&mut self.finished);
        finished.retain(|emission| emission.claim.begin());
        if finished.is_empty() {
            return Ok(());
        }
        self.messenger.send(finished).await
    }
}

/// A poison record: it fails, and the records behind it go on.
pub(crate) fn undecodable(
    claim: crate::intake::Claim,
    envelope: Option<Envelope>,
    key: CompactString,
    body: Option<Bytes>,
    reason: &str,
    wall_micros: u64,
) -> Emission {
    let events = envelope.iter().map(|envelope| {
        // On the source topic the ordinal is 0 and this is the parent; on the destination topic both are as written.
        let parent = Envelope { is_parent: envelope.is_parent || envelope.ticket.attempt == 0, ..*envelope };
        Event::failed(&parent, &key, reason, wall_micros)
    });
    let events = events.collect();
    // Nobody of this system wrote it: that it lay where the letter's writer reads is all that is known.
    let foreign = || match claim.position() {
        Some(position) => Envelope {
            origin_partition: position.partition.partition,
            origin_offset: position.offset,
            ..Envelope::default()
        },
        None => Envelope { origin_partition: -1, origin_offset: -1, ..Envelope::default() },
    };
    let dead = DeadLetter { id: key, envelope: envelope.unwrap_or_else(foreign), body, cause: reason.to_owned() };
    Emission { claim, outputs: Vec::new(), events, dead_letters: vec![dead] }
}

/// One attempt at one record: numbers its outputs.
#[derive(Debug)]
struct Family {
    base: Envelope,
    next_ordinal: u32,
    versions: OutputVersions,
    digest: FamilyDigest,
}

impl Family {
    fn new(source: &Envelope, position: Option<&crate::identity::Position>, attempt: u64) -> Self {
        let (origin_partition, origin_offset) = match position {
            Some(position) => (position.partition.partition, position.offset),
            None => (-1, -1),
        };
        let ticket = Ticket { attempt, ..source.ticket };
        Family {
            base: Envelope { ticket, origin_partition, origin_offset, ..*source },
            next_ordinal: 0,
            versions: OutputVersions::new(source.version),
            digest: FamilyDigest::default(),
        }
    }

    fn add(
        &mut self,
        output: PipelineOutput,
        original: &Original,
        emission: &mut Emission,
        create_events: bool,
        wall_micros: impl Fn() -> u64,
    ) {
        let mut envelope = self.base;
        envelope.ticket.ordinal = self.next_ordinal;
        envelope.is_parent = output.is_parent;
        self.next_ordinal = self.next_ordinal.checked_add(1).expect("a family is far below 2^32 outputs");
        let id = output.id;
        let result = output.result.map_err(|failure| failure.to_string()).and_then(|document| {
            if document.is_dropped() {
                return Ok(document);
            }
            match self.versions.next(&id) {
                Some(version) => {
                    envelope.version = version;
                    Ok(document)
                }
                None => Err(format!(
                    "more than {} outputs with the id `{id}`",
                    crate::identity::Version::MAX_OUTPUTS_PER_ID
                )),
            }
        });
        let kind = match &result {
            Ok(document) if document.is_dropped() => EventKind::Drop,
            Ok(_) => EventKind::Finish,
            Err(_) => EventKind::Fail,
        };
        self.digest.add(envelope.ticket.ordinal, &id, kind);
        if output.is_parent {
            envelope.digest = self.digest.finish();
        } else if create_events {
            emission.events.push(Event::created(&envelope, &id, wall_micros()));
        }
        match result {
            Ok(document) if document.is_dropped() => {
                emission.events.push(Event::dropped(&envelope, &id, wall_micros()));
            }
            Ok(document) => emission.outputs.push(Outbound { document, envelope }),
            Err(cause) => {
                emission.events.push(Event::failed(&envelope, &id, &cause, wall_micros()));
                let body = Some(original.to_json());
                emission.dead_letters.push(DeadLetter { id, envelope, body, cause });
            }
        }
    }
}

#[cfg(test)]
mod tests;
