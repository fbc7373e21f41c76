//! The `kafka-dev` command.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use seriatim_kafka_dev::secured::{Entrance, Operation, Right, USERS, password};
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
        /// With listeners for TLS and SASL too, users, and rights: by these, who was granted nothing may do nothing.
        #[arg(long)]
        secured: bool,
    },
    /// Gives a user of a secured cluster all rights on the topics and groups whose names begin so.
    Grant {
        #[command(flatten)]
        place: Place,
        /// The user.
        user: String,
        /// The beginning of the names.
        prefix: String,
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
        /// With listeners for TLS and SASL too, users, and rights.
        #[arg(long)]
        secured: bool,
    },
}

/// Says how clients come in by listeners other than the plain one.
fn tell(entrances: impl IntoIterator<Item = (Entrance, String)>, authority: &std::path::Path) {
    for (entrance, address) in entrances {
        eprintln!("security.protocol={}  {address}", entrance.protocol());
    }
    eprintln!("ssl.ca.location={}", authority.display());
    for user in USERS {
        eprintln!("sasl.username={user} sasl.password={}", password(user));
    }
}

/// What any part of a pipeline may have to do.
fn all_rights(prefix: &str) -> Vec<Right<'_>> {
    let all = [Operation::Read, Operation::Write, Operation::Create, Operation::Delete, Operation::Describe];
    let topics = all.map(|operation| Right::topic(operation, prefix).prefixed());
    topics.into_iter().chain([Right::group(Operation::Read, prefix).prefixed()]).collect()
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
        Action::Start { place, nodes, version, port, secured } => {
            let standing = place.standing();
            println!("{}", standing.start(nodes, version.as_deref(), port, secured)?);
            if let Some(authority) = standing.authority()? {
                tell(standing.entrances()?, &authority);
            }
        }
        Action::Grant { place, user, prefix } => {
            anyhow::ensure!(USERS.contains(&&*user), "there is no user {user}; there are {}", USERS.join(", "));
            place.standing().grant(&user, &all_rights(&prefix))?;
            println!("granted {user} all on topics and groups {prefix}*");
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
        Action::Run { nodes, version, secured } => {
            let mut cluster = Cluster::start(&Options { nodes, version, secured, ..Options::default() })?;
            println!("{}", cluster.bootstrap());
            if secured {
                let entrances = Entrance::ALL.into_iter();
                tell(entrances.filter_map(|one| Some((one, cluster.secured_bootstrap(one)?))), &cluster.authority());
            }
            eprintln!("in {}; ends with this command", cluster.folder().display());
            while cluster.nodes().all(|node| cluster.is_up(node)) {
                std::thread::park_timeout(std::time::Duration::from_millis(500));
            }
            anyhow::bail!("a node ended by itself");
        }
    }
    Ok(ExitCode::SUCCESS)
}
