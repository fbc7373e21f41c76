//! Where it is measured: the broker, its topics, the bytes in its log, and who used the processor.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use seriatim_kafka_dev::{Cluster, Options};

use crate::Measured;
use crate::part::Names;

/// Partitions of the source and the destination topic.
pub const PARTITIONS: i32 = 4;
const LIMIT: Duration = Duration::from_secs(20);

/// A broker and the way to its topics.
pub struct Site {
    pub kafka: String,
    pub broker: Option<u32>,
    cluster: Option<Cluster>,
    admin: AdminClient<DefaultClientContext>,
    runtime: tokio::runtime::Runtime,
}

/// Processor time, microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Processor {
    pub clients: u64,
    pub broker: u64,
}

impl Processor {
    pub fn since(self, before: Processor) -> Processor {
        let broker = self.broker.saturating_sub(before.broker);
        Processor { clients: self.clients.saturating_sub(before.clients), broker }
    }
}

/// Bytes that lie in the broker's log, of each hop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bytes {
    pub source: u64,
    pub dest: u64,
    pub events: u64,
}

impl Site {
    /// The broker that was named, or one of our own, which ends with this.
    pub fn open(measured: &Measured) -> anyhow::Result<Self> {
        let cluster = match &measured.kafka {
            Some(_) => None,
            None => {
                // Topics go after each measurement: so do their files, at once and not in the middle of the next.
                let properties = vec![("log.segment.delete.delay.ms".to_owned(), "0".to_owned())];
                Some(Cluster::start(&Options { properties, ..Options::default() })?)
            }
        };
        let kafka = match (&measured.kafka, &cluster) {
            (Some(kafka), _) => kafka.clone(),
            (None, Some(cluster)) => cluster.bootstrap(),
            (None, None) => anyhow::bail!("there is no broker"),
        };
        let broker = cluster.as_ref().and_then(|cluster| process_with(&cluster.folder().display().to_string()));
        let admin = ClientConfig::new().set("bootstrap.servers", &kafka).create().context("an admin client")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(Site { kafka, broker, cluster, admin, runtime })
    }

    /// Makes the topics of `names`.
    pub fn make(&self, names: &Names) -> anyhow::Result<()> {
        let one = || TopicReplication::Fixed(1);
        let wide = [&names.source, &names.dest].map(|name| NewTopic::new(name, PARTITIONS, one()));
        let narrow = [&names.fail, &names.event].map(|name| NewTopic::new(name, 1, one()));
        let topics: Vec<_> = wide.iter().chain(&narrow).collect();
        let made = self.runtime.block_on(self.admin.create_topics(topics, &AdminOptions::new()));
        for made in made.context("making topics")? {
            made.map_err(|(topic, code)| anyhow::anyhow!("making topic `{topic}`: {code}"))?;
        }
        Ok(())
    }

    /// Removes every topic of the pipeline.
    pub fn remove(&self, names: &Names) -> anyhow::Result<()> {
        let all = self.admin.inner().fetch_metadata(None, LIMIT).context("listing topics")?;
        let prefix = format!("{}_", names.pipeline);
        let topics: Vec<&str> =
            all.topics().iter().map(|topic| topic.name()).filter(|name| name.starts_with(&prefix)).collect();
        if topics.is_empty() {
            return Ok(());
        }
        self.runtime.block_on(
            self.admin
                .delete_topics(&topics, &AdminOptions::new())
                .map(|removed| removed.map(|_| ()).context("removing topics")),
        )
    }

    /// What lies in the log of the pipeline's topics, when the broker is our own.
    pub fn bytes(&self, names: &Names) -> Option<Bytes> {
        let data = self.cluster.as_ref()?.folder().join("node-1/data");
        let mut bytes = Bytes::default();
        let events = format!("{}_event_", names.pipeline);
        for folder in fs::read_dir(data).ok()?.filter_map(|entry| Some(entry.ok()?.path())) {
            let name = folder.file_name()?.to_string_lossy().into_owned();
            let Some((topic, _)) = name.rsplit_once('-') else { continue };
            let of = match topic {
                topic if topic == names.source => &mut bytes.source,
                topic if topic == names.dest => &mut bytes.dest,
                topic if topic.starts_with(&events) => &mut bytes.events,
                _ => continue,
            };
            *of += log_bytes(&folder);
        }
        Some(bytes)
    }
}

fn log_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let logs = files.filter(|path: &PathBuf| path.extension().is_some_and(|end| end == "log"));
    logs.filter_map(|path| Some(fs::metadata(path).ok()?.len())).sum()
}

/// The process of Kafka whose words name `folder`.
fn process_with(folder: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let words = |pid: &u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    processes.into_iter().find(|pid| {
        let words = words(pid);
        let words = String::from_utf8_lossy(&words);
        let program = words.split('\0').next().unwrap_or_default();
        program.ends_with("java") && words.contains(folder)
    })
}

/// Processor time that a process has used, microseconds; 0 where nobody tells.
pub fn processor_micros(pid: u32) -> u64 {
    const MICROS_PER_TICK: u64 = 10_000;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold anything; user and system time are the 12th and 13th words after it.
    let words = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks = words.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<u64>().ok());
    ticks.sum::<u64>() * MICROS_PER_TICK
}
