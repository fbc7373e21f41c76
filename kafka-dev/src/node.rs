//! One node, broker and controller in one process: its folder, its properties, its process.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::error::{Context, Error, tail};
use crate::jars::Jars;
use crate::secured::{self, Ports};
use crate::{Options, ports, wait};

/// Any 16 bytes in base64 would do.
const CLUSTER_ID: &str = "c2VyaWF0aW0ta2Fma2EtZA";
const READY: &str = "Kafka Server started";
const START_LIMIT: Duration = Duration::from_secs(120);
const FORMAT_LIMIT: Duration = Duration::from_secs(60);
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(15);
/// A shell script that runs a server and ends it with whoever started it: see its own words.
pub const GUARD: &str = include_str!("guard.sh");
const LOG4J: &str = include_str!("log4j2.xml");
const HEAP: &str = "-Xmx512m";

/// A node of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: u32,
    pub(crate) port: u16,
    pub(crate) controller_port: u16,
    /// Where clients think that it is when they come over the lossy link, and where it is.
    pub(crate) lossy: Option<(u16, u16)>,
    /// Where the listeners with TLS and SASL are.
    pub(crate) secured: Option<Ports>,
    pub(crate) folder: PathBuf,
}

impl Node {
    /// Where clients reach it.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.port)
    }

    fn properties_path(&self) -> PathBuf {
        self.folder.join("server.properties")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    fn output(&self) -> PathBuf {
        self.folder.join("output.log")
    }

    /// Makes its folder, with all but the data.
    pub(crate) fn prepare(&self, cluster: &[Node], options: &Options) -> Result<(), Error> {
        fs::create_dir_all(&self.folder).context(|| format!("making {}", self.folder.display()))?;
        let files = [
            (self.folder.join("log4j2.xml"), LOG4J.to_owned()),
            (self.properties_path(), self.properties(cluster, options)),
        ];
        for (path, text) in files {
            fs::write(&path, text).context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }

    fn properties(&self, cluster: &[Node], options: &Options) -> String {
        let (copies, in_sync) = if cluster.len() >= 3 { (3, 2) } else { (1, 1) };
        let host = Ipv4Addr::LOCALHOST;
        let voters: Vec<String> =
            cluster.iter().map(|node| format!("{}@{host}:{}", node.id, node.controller_port)).collect();
        let mut listeners = format!("PLAINTEXT://{},CONTROLLER://{host}:{}", self.address(), self.controller_port);
        let mut advertised = format!("PLAINTEXT://{}", self.address());
        if let Some((front, back)) = self.lossy {
            listeners += &format!(",LOSSY://{host}:{back}");
            advertised += &format!(",LOSSY://{host}:{front}");
        }
        let mut protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOSSY:PLAINTEXT".to_owned();
        if let Some(ports) = self.secured {
            listeners += &ports.listeners();
            advertised += &ports.listeners();
            protocols += secured::PROTOCOLS;
        }
        let mut all: Vec<(&str, String)> = vec![
            ("process.roles", "broker,controller".into()),
            ("node.id", self.id.to_string()),
            ("controller.quorum.voters", voters.join(",")),
            ("controller.listener.names", "CONTROLLER".into()),
            ("listeners", listeners),
            ("advertised.listeners", advertised),
            ("listener.security.protocol.map", protocols),
            ("inter.broker.listener.name", "PLAINTEXT".into()),
            ("log.dirs", self.folder.join("data").display().to_string()),
            ("default.replication.factor", copies.to_string()),
            ("min.insync.replicas", in_sync.to_string()),
            ("offsets.topic.replication.factor", copies.to_string()),
            ("offsets.topic.num.partitions", "4".into()),
            ("transaction.state.log.replication.factor", copies.to_string()),
            ("transaction.state.log.min.isr", in_sync.to_string()),
            ("transaction.state.log.num.partitions", "4".into()),
            ("share.coordinator.state.topic.replication.factor", copies.to_string()),
            ("share.coordinator.state.topic.min.isr", in_sync.to_string()),
            ("auto.create.topics.enable", "false".into()),
        ];
        // Small, and quick to notice what ends: this is for tests. Kafka's own are 3 s, 6 s, 9 s and so on.
        let small = [
            ("group.initial.rebalance.delay.ms", "0"),
            ("group.min.session.timeout.ms", "1000"),
            ("broker.session.timeout.ms", "3000"),
            ("broker.heartbeat.interval.ms", "500"),
            ("controller.quorum.election.timeout.ms", "500"),
            ("controller.quorum.fetch.timeout.ms", "1000"),
            ("group.consumer.min.heartbeat.interval.ms", "500"),
            ("group.consumer.heartbeat.interval.ms", "500"),
            ("group.consumer.min.session.timeout.ms", "1000"),
            ("group.consumer.session.timeout.ms", "6000"),
            ("num.network.threads", "2"),
            ("num.io.threads", "4"),
            ("background.threads", "4"),
            ("log.cleaner.dedupe.buffer.size", "16777216"),
        ];
        all.extend(small.map(|(name, value)| (name, value.to_owned())));
        if self.secured.is_some() {
            all.extend(secured::properties(&secured::folder(cluster)));
        }
        all.extend(options.properties.iter().map(|(name, value)| (name.as_str(), value.clone())));
        all.iter().fold(String::new(), |mut text, (name, value)| {
            // Of a name given twice the later value holds.
            let _ = writeln!(text, "{name}={value}");
            text
        })
    }

    fn java(&self, jars: &Jars, heap: &str) -> Result<Command, Error> {
        let mut java = jars.command(heap)?;
        java.arg(format!("-Dlog4j2.configurationFile=file:{}", self.folder.join("log4j2.xml").display()));
        java.arg(format!("-Dkafka.dev.log={}", self.log().display()));
        Ok(java)
    }

    /// Formats its data folder, unless that is done already.
    pub(crate) fn format(&self, jars: &Jars) -> Result<(), Error> {
        if self.folder.join("data/meta.properties").exists() {
            return Ok(());
        }
        let path = self.folder.join("format.log");
        let mut java = self.java(jars, "-Xmx128m")?;
        java.arg("-XX:TieredStopAtLevel=1");
        if jars.archive().exists() {
            java.arg(format!("-XX:SharedArchiveFile={}", jars.archive().display()));
        }
        java.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]).arg(self.properties_path());
        if self.secured.is_some() {
            java.args(secured::scram_users());
        }
        let mut tool = printing_to(&mut java, &path)?;
        let ended = wait::until(FORMAT_LIMIT, || tool.try_wait().ok().flatten());
        if ended.is_some_and(|status| status.success()) {
            return Ok(());
        }
        let _ = tool.kill();
        let _ = tool.wait();
        Err(Error::Format { node: self.id, tail: tail(&[&path]) })
    }

    /// The server's command, and an empty log for it.
    fn server(&self, jars: &Jars, classes: &str) -> Result<Command, Error> {
        File::create(self.log()).context(|| format!("making {}", self.log().display()))?;
        let mut java = self.java(jars, HEAP)?;
        java.arg(classes).arg("kafka.Kafka").arg(self.properties_path());
        Ok(java)
    }

    fn from_archive(jars: &Jars) -> String {
        match jars.archive().exists() {
            true => format!("-XX:SharedArchiveFile={}", jars.archive().display()),
            false => "-Xshare:auto".into(),
        }
    }

    /// Starts it so that it outlives this process.
    pub(crate) fn start_detached(&self, jars: &Jars) -> Result<Child, Error> {
        let mut java = self.server(jars, &Self::from_archive(jars))?;
        printing_to(&mut java, &self.output())
    }

    /// Starts it under a guard: a shell that ends it when this process is gone. With `vanishes` its folder goes along.
    pub(crate) fn start_guarded(&self, jars: &Jars, vanishes: bool) -> Result<Child, Error> {
        let java = self.server(jars, &Self::from_archive(jars))?;
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(self.output());
        guard.arg(if vanishes { self.folder.as_path() } else { Path::new("") });
        guard.arg(java.get_program()).args(java.get_args());
        // Out of the terminal's process group: an interrupt there ends this process, and that ends the server.
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        guard.spawn().context(|| format!("starting `sh` for node {}", self.id))
    }

    /// Waits until it serves.
    pub(crate) fn await_ready(&self, process: &mut Child) -> Result<(), Error> {
        let (log, output) = (self.log(), self.output());
        let is_ready = || fs::read_to_string(&log).is_ok_and(|text| text.contains(READY));
        let seen = wait::until(START_LIMIT, || {
            if is_ready() {
                return Some(true);
            }
            process.try_wait().ok().flatten().map(|_| false)
        });
        let tail = || tail(&[&log, &output]);
        match seen {
            Some(true) => Ok(()),
            Some(false) => Err(Error::Ended { node: self.id, tail: tail(), log: log.clone() }),
            None => {
                let seconds = START_LIMIT.as_secs();
                Err(Error::NotReady { node: self.id, seconds, tail: tail(), log: log.clone() })
            }
        }
    }
}

/// Starts `command` in a process group of its own, with nothing to read, printing to `path`.
pub(crate) fn printing_to(command: &mut Command, path: &Path) -> Result<Child, Error> {
    let output = File::create(path).context(|| format!("making {}", path.display()))?;
    let errors = output.try_clone().context(|| format!("opening {}", path.display()))?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    command.spawn().context(|| format!("starting {}", command.get_program().display()))
}

/// Sends the signal called `name` to the process `pid`.
pub(crate) fn signal(pid: u32, name: &str) {
    let _ = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\" 2>/dev/null", name, &pid.to_string()]).status();
}

/// Runs a broker once to write down the classes that it loads: later ones start from the archive in a third of the
/// time. Without it they only start more slowly, so what goes wrong here is passed over.
pub(crate) fn train(jars: &Jars) {
    let _ = try_train(jars);
}

fn try_train(jars: &Jars) -> Result<(), Error> {
    let folder = tempfile::Builder::new().prefix("kafka-dev-").tempdir().context(|| "making a folder".into())?;
    let found = ports::free(2, None)?;
    let (port, controller_port) = (found[0], found[1]);
    let node = Node { id: 1, port, controller_port, lossy: None, secured: None, folder: folder.path().join("node-1") };
    node.prepare(std::slice::from_ref(&node), &Options::default())?;
    node.format(jars)?;
    let part = jars.archive().with_extension("part");
    let mut java = node.server(jars, &format!("-XX:ArchiveClassesAtExit={}", part.display()))?;
    let mut server = printing_to(&mut java, &node.output())?;
    let ready = node.await_ready(&mut server);
    signal(server.id(), "TERM");
    let ended = wait::until(START_LIMIT, || server.try_wait().ok().flatten());
    let _ = server.kill();
    let _ = server.wait();
    if ready.is_ok() && ended.is_some() {
        fs::rename(&part, jars.archive()).context(|| "keeping the archive".into())?;
    }
    ready
}
