//! What a person, or a driver, says to a process: flags, checked before anything starts.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use seriatim_kafka::KafkaSettings;

use super::history::Life;
use crate::plan::{Assignment, Clients, Knobs, PlanError};

/// Whose history is written, and where.
#[derive(Args, Clone, Debug)]
pub struct Recording {
    /// Appends the history to this file, JSON lines [default: none is kept].
    #[arg(long)]
    pub history: Option<PathBuf>,
    /// The node's name in the history [default: the role].
    #[arg(long)]
    pub name: Option<String>,
    /// Which life of the node this is.
    #[arg(long, default_value_t = 0)]
    pub life: u32,
}

impl Recording {
    /// Whose history it is, of a process of that role.
    pub(super) fn life(&self, role: &str) -> Life {
        Life { node: self.name.clone().unwrap_or_else(|| role.to_owned()), incarnation: self.life }
    }
}

/// How the index writes are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// The stages that documents go through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Stages {
    /// Those that do what a document's marks say: `children`, `drop`, `fail`, `panic`, `slow_ms`.
    Marks,
    /// None.
    None,
}

/// The pipeline and its limits.
#[derive(Args, Clone, Debug)]
pub struct Pipeline {
    /// Brokers, `host:port`, with commas between.
    #[arg(long)]
    pub kafka: String,
    /// A property of all clients by librdkafka's name, `key=value`; may be given more than once.
    #[arg(long = "property", value_name = "KEY=VALUE", value_parser = property)]
    pub properties: Vec<(String, String)>,
    /// A file of such lines, for what must not be seen in a list of processes; blank ones and those that begin with `#`
    /// say nothing.
    #[arg(long)]
    pub properties_file: Option<PathBuf>,
    /// The pipeline: its topics and groups are called after it.
    #[arg(long)]
    pub pipeline: String,
    /// Most published and unfinished records.
    #[arg(long, default_value_t = 1_000)]
    pub max_pending: u32,
    /// Most records that a worker or an indexer holds at a time.
    #[arg(long, default_value_t = 500)]
    pub max_in_flight: u32,
    /// Most records of one poll.
    #[arg(long, default_value_t = 500)]
    pub poll_max: u32,
    /// Most operations of one index request.
    #[arg(long, default_value_t = 100)]
    pub batch_size: u32,
    /// Longest that an operation waits for its batch, milliseconds.
    #[arg(long, default_value_t = 100)]
    pub batch_age_ms: u64,
    /// Kafka's `session.timeout.ms`.
    #[arg(long, default_value_t = 45_000)]
    pub session_ms: u64,
    /// Kafka's `heartbeat.interval.ms`.
    #[arg(long, default_value_t = 3_000)]
    pub heartbeat_ms: u64,
    /// Kafka's `max.poll.interval.ms`.
    #[arg(long, default_value_t = 300_000)]
    pub poll_limit_ms: u64,
    /// Age at which clients look for new partitions, milliseconds.
    #[arg(long, default_value_t = 300_000)]
    pub metadata_ms: u64,
    /// How a group's partitions are given to its members: `range`, `roundrobin` or `cooperative-sticky`.
    #[arg(long, default_value = "range", value_parser = assignor)]
    pub assignor: Assignment,
    /// Whether a member is static: one that comes back within its session keeps its partitions.
    #[arg(long)]
    pub static_member: bool,
    /// Whether a revocation waits for what is under way.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub drain: Switch,
    /// Whether index writes carry versions.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub versions: Switch,
    /// The stages.
    #[arg(long, value_enum, default_value_t = Stages::Marks)]
    pub stages: Stages,
    /// Whether documents name the index that they live in, in their field `index`.
    #[arg(long)]
    pub indexes: bool,
    /// Copies of the topics that a run makes.
    #[arg(long, default_value_t = 1)]
    pub replication: u16,
    /// Puts a flawed pipeline of the zoo into this process, by its name.
    #[arg(long)]
    pub variant: Option<String>,
}

fn assignor(text: &str) -> Result<Assignment, String> {
    match text {
        "range" => Ok(Assignment::Range),
        "roundrobin" => Ok(Assignment::RoundRobin),
        "cooperative-sticky" => Ok(Assignment::CooperativeSticky),
        other => Err(format!("`{other}` is no assignor of librdkafka; write range, roundrobin or cooperative-sticky")),
    }
}

/// One `key=value`. What was given is not repeated: it may be a password.
fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("write key=value, such as security.protocol=sasl_ssl".into()),
    }
}

impl Pipeline {
    /// The cluster, and how its clients reach it.
    pub(super) fn kafka_settings(&self) -> anyhow::Result<KafkaSettings> {
        let mut settings = KafkaSettings::new(&self.kafka);
        if let Some(path) = &self.properties_file {
            let read = fs::read_to_string(path);
            let text = read.with_context(|| format!("--properties-file {} cannot be read", path.display()))?;
            for (number, line) in text.lines().enumerate().map(|(place, line)| (place + 1, line.trim())) {
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let (key, value) =
                    property(line).map_err(|problem| anyhow!("{}, line {number}: {problem}", path.display()))?;
                settings = settings.with(key, value);
            }
        }
        // Those of the command line win.
        Ok(self.properties.iter().fold(settings, |settings, (key, value)| settings.with(key, value)))
    }

    /// The same as a plan has it, checked.
    pub(super) fn knobs(&self) -> Result<Knobs, PlanError> {
        let knobs = Knobs {
            max_pending: self.max_pending,
            max_in_flight: self.max_in_flight,
            poll_max: self.poll_max,
            batch_size: self.batch_size,
            batch_age_micros: self.batch_age_ms.saturating_mul(1_000),
            session_timeout_ms: self.session_ms,
            heartbeat_ms: self.heartbeat_ms,
            poll_limit_ms: self.poll_limit_ms,
            processing_limit_ms: 600_000,
            clients: Clients {
                producer_metadata_ms: self.metadata_ms,
                consumer_metadata_ms: self.metadata_ms,
                assignors: vec![vec![self.assignor]],
                static_members: self.static_member,
                ..Clients::default()
            },
            versions: self.versions == Switch::On,
            drain: self.drain == Switch::On,
        };
        knobs.validate().map_err(at_the_flag)?;
        Ok(knobs)
    }

    /// The flags that say the same as `knobs`, which a driver gives to the processes that it starts.
    pub fn flags(knobs: &Knobs, number: u32) -> Vec<String> {
        let lists = &knobs.clients.assignors;
        let assignor = lists.get(number as usize % lists.len().max(1)).and_then(|list| list.first());
        let switch = |on: bool| if on { "on" } else { "off" };
        let mut flags: Vec<String> = [
            ("max-pending", knobs.max_pending.to_string()),
            ("max-in-flight", knobs.max_in_flight.to_string()),
            ("poll-max", knobs.poll_max.to_string()),
            ("batch-size", knobs.batch_size.to_string()),
            ("batch-age-ms", Duration::from_micros(knobs.batch_age_micros).as_millis().to_string()),
            ("session-ms", knobs.session_timeout_ms.to_string()),
            ("heartbeat-ms", knobs.heartbeat_ms.to_string()),
            ("poll-limit-ms", knobs.poll_limit_ms.to_string()),
            ("metadata-ms", knobs.clients.consumer_metadata_ms.to_string()),
            (
                "assignor",
                seriatim_core::transport::Assignor::from(*assignor.unwrap_or(&Assignment::Range)).name().into(),
            ),
            ("drain", switch(knobs.drain).into()),
            ("versions", switch(knobs.versions).into()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [format!("--{name}"), value])
        .collect();
        flags.extend(knobs.clients.static_members.then(|| "--static-member".to_owned()));
        flags
    }
}

/// The error in the words of the command line.
fn at_the_flag(error: PlanError) -> PlanError {
    let flag = |place: &'static str| match place {
        "pipeline.max_pending" => "--max-pending",
        "pipeline.max_in_flight" => "--max-in-flight",
        "pipeline.poll_max" => "--poll-max",
        "pipeline.batch_size" => "--batch-size",
        "pipeline.session_timeout_ms" => "--session-ms",
        "pipeline.heartbeat_ms" => "--heartbeat-ms",
        "pipeline.poll_limit_ms" => "--poll-limit-ms",
        "pipeline.clients.producer_metadata_ms" | "pipeline.clients.consumer_metadata_ms" => "--metadata-ms",
        other => other,
    };
    match error {
        PlanError::Range { place, value, reason, low, high } => {
            PlanError::Range { place: flag(place), value, reason, low, high }
        }
        PlanError::Contradiction { place, reason } => PlanError::Contradiction { place: flag(place), reason },
        other => other,
    }
}

/// What a publisher publishes.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Input {
    /// A JSONL file of operations (`id`, `op`, other fields).
    #[arg(long)]
    pub input: Option<PathBuf>,
    /// So many generated operations.
    #[arg(long)]
    pub generate: Option<u32>,
    /// The history of ripgrep's files, which comes with the program.
    #[arg(long)]
    pub ripgrep: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::plan::Plan;
    use crate::scenario::find;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        pipeline: Pipeline,
    }

    fn parse(flags: &[String]) -> Pipeline {
        let head = ["node", "--kafka", "localhost:9092", "--pipeline", "p"].map(str::to_owned);
        Only::parse_from(head.iter().chain(flags)).pipeline
    }

    #[test]
    fn the_flags_of_a_plan_say_what_the_plan_says() {
        for seed in 0..200 {
            let plan = Plan::draw(find("distributed-all").expect("it is named"), seed);
            let mut due = plan.pipeline;
            // What no flag says, and what differs between the members.
            let (clients, list) = (due.clients.clone(), due.clients.assignors[0].clone());
            if list[0] == Assignment::Sticky {
                continue;
            }
            due.processing_limit_ms = 600_000;
            due.batch_age_micros = due.batch_age_micros / 1_000 * 1_000;
            due.clients = Clients {
                producer_metadata_ms: clients.consumer_metadata_ms,
                consumer_metadata_ms: clients.consumer_metadata_ms,
                assignors: vec![vec![list[0]]],
                static_members: clients.static_members,
                ..Clients::default()
            };
            assert_eq!(parse(&Pipeline::flags(&due, 0)).knobs(), Ok(due));
        }
    }

    #[test]
    fn a_value_out_of_range_is_named_by_its_flag() {
        let wrong = |flags: &[&str]| {
            let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
            parse(&flags).knobs().expect_err("it is wrong").to_string()
        };
        assert_eq!(wrong(&["--poll-max", "0"]), "--poll-max is 0: with no room nothing would move; give 1 to 1000000");
        assert_eq!(
            wrong(&["--session-ms", "1000", "--heartbeat-ms", "1000"]),
            "--heartbeat-ms: 1000 is not below session_timeout_ms (1000), so every member would be evicted; give a \
             third of it"
        );
    }
}
