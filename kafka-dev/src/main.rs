//! The `kafka-dev` command.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use seriatim_kafka_dev::{Cluster, Options, Standing, VERSION};

/// Starts a real Apache Kafka on 127.0.0.1, from jars that Maven brings.
#[derive(Parser, Debug)]
#[command(name = "kafka-dev", bin_name = "cargo kafka-dev", version, about)]
#[command(
    after_help = "Needs Java 17 or later, and Maven the first time. Several clusters live side by side in folders \
                        of their own (--dir), on ports of their own."
)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Args, Debug)]
struct Place {
    /// The cluster's folder [default: target/kafka-dev/cluster].
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Place {
    fn standing(&self) -> Standing {
        Standing::in_folder(self.dir.clone().unwrap_or_else(Standing::default_folder))
    }
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Starts a cluster, or what is down of one; prints its addresses when it serves.
    Start {
        #[command(flatten)]
        place: Place,
        /// Nodes: 1 or 3 [default: 1].
        #[arg(long)]
        nodes: Option<u32>,
        /// Version of Kafka, 4.0 or later [default: 4.3.1].
        #[arg(long)]
        version: Option<String>,
        /// The first free ports from here up are taken.
        #[arg(long, default_value_t = 19_092)]
        port: u16,
    },
    /// Stops all nodes; their data stays.
    Stop {
        #[command(flatten)]
        place: Place,
    },
    /// Lists the nodes. Exit status 1 when not all of them are up.
    Status {
        #[command(flatten)]
        place: Place,
    },
    /// Kills one node at once (SIGKILL); `start` brings it back.
    Kill {
        #[command(flatten)]
        place: Place,
        /// The node.
        #[arg(long, default_value_t = 1)]
        node: u32,
    },
    /// Stops all nodes and removes the cluster's folder.
    Wipe {
        #[command(flatten)]
        place: Place,
    },
    /// Starts a cluster without a past and without a future: it ends with this command.
    Run {
        /// Nodes: 1 or 3.
        #[arg(long, default_value_t = 1)]
        nodes: u32,
        /// Version of Kafka, 4.0 or later.
        #[arg(long, default_value = VERSION)]
        version: String,
    },
}

fn main() -> ExitCode {
    match execute(Command::parse().action) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn execute(action: Action) -> anyhow::Result<ExitCode> {
    match action {
        Action::Start { place, nodes, version, port } => {
            println!("{}", place.standing().start(nodes, version.as_deref(), port)?);
        }
        Action::Stop { place } => match place.standing().stop()? {
            0 => println!("nothing was up"),
            count => println!("stopped {count} node(s)"),
        },
        Action::Status { place } => {
            let nodes = place.standing().status()?;
            for one in &nodes {
                let state = one.pid.map_or("down".into(), |pid| format!("up, pid {pid}"));
                println!("node {}  {}  {state}  {}", one.node, one.address, one.log.display());
            }
            if nodes.is_empty() {
                println!("no cluster; `cargo kafka-dev start` makes one");
            }
            if nodes.is_empty() || nodes.iter().any(|one| one.pid.is_none()) {
                return Ok(ExitCode::FAILURE);
            }
        }
        Action::Kill { place, node } => match place.standing().kill(node)? {
            true => println!("killed node {node}"),
            false => println!("node {node} was not up"),
        },
        Action::Wipe { place } => match place.standing().wipe()? {
            true => println!("wiped"),
            false => println!("there was no cluster"),
        },
        Action::Run { nodes, version } => {
            let mut cluster = Cluster::start(&Options { nodes, version, ..Options::default() })?;
            println!("{}", cluster.bootstrap());
            eprintln!("in {}; ends with this command", cluster.folder().display());
            while cluster.nodes().all(|node| cluster.is_up(node)) {
                std::thread::park_timeout(std::time::Duration::from_millis(500));
            }
            anyhow::bail!("a node ended by itself");
        }
    }
    Ok(ExitCode::SUCCESS)
}
