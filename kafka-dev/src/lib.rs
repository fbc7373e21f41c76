//! A real Apache Kafka in KRaft mode on 127.0.0.1, for tests and for trying things out.
//!
//! The broker's jars come from Maven Central by `pom.xml`, once, into the target folder; that takes Maven, and running
//! it Java 17 or later. [`testing`] is what a test calls; [`Cluster`] is a cluster of one's own,
//! whose nodes can be killed and started again; the `kafka-dev` command keeps one running between commands.
//!
//! It must never leave a server behind: a [`Cluster`] ends with the process that started it, however that ends. Only
//! what the command started stays until the command stops it. And it must never end a process that it did not start.
//!
//! ```no_run
//! use seriatim_kafka_dev::{Cluster, Options};
//!
//! let mut cluster = Cluster::start(&Options { nodes: 3, ..Options::default() })?;
//! println!("{}", cluster.bootstrap());
//! cluster.kill(2)?;
//! cluster.restart(2)?;
//! # Ok::<(), seriatim_kafka_dev::Error>(())
//! ```

mod cluster;
mod error;
mod jars;
mod node;
mod ports;
mod proxy;
pub mod secured;
mod standing;
pub mod testing;
mod wait;

pub use cluster::Cluster;
pub use error::Error;
pub use node::GUARD;
pub use proxy::Losses;
pub use standing::{NodeStatus, Standing};

/// The Kafka that is started unless another is asked for.
pub const VERSION: &str = "4.3.1";

/// What to start.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes, each broker and controller: 1, or 3 with three copies of everything, of which two must be in sync.
    pub nodes: u32,
    /// Version of Apache Kafka, 4.0 or later.
    pub version: String,
    /// Broker properties that are added or replaced.
    pub properties: Vec<(String, String)>,
    /// Free ports are looked for from here up; `None` begins anywhere from 20,000 to 32,000.
    pub first_port: Option<u16>,
    /// Whether the nodes can be reached over a link that loses answers too ([`Cluster::lossy_bootstrap`]).
    pub lossy: bool,
    /// Whether there are listeners with TLS and SASL beside the plain one, and rights are asked for ([`secured`]).
    pub secured: bool,
}

impl Default for Options {
    fn default() -> Self {
        let version = VERSION.into();
        Options { nodes: 1, version, properties: Vec::new(), first_port: None, lossy: false, secured: false }
    }
}

impl Options {
    fn check(&self) -> Result<(), Error> {
        match self.nodes {
            1 | 3 => Ok(()),
            other => Err(Error::Refused(format!("a cluster has 1 or 3 nodes, not {other}"))),
        }
    }
}
