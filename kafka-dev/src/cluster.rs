//! A cluster that lives no longer than the process that started it.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Child;

use tempfile::TempDir;

use crate::error::{Context, Error};
use crate::jars::Jars;
use crate::node::{Node, STOP_LIMIT};
use crate::proxy::{Link, Losses};
use crate::secured::{self, Entrance, Ports, Right};
use crate::{Options, ports, wait};

/// Starts again when another process took a port in between.
const STARTS_MAX: usize = 3;

/// A running cluster in a folder of its own under the system's temporary one, on free ports of 127.0.0.1.
///
/// Its processes end, and its folder goes, when this is dropped, also by a panic; and when the process that holds it is
/// gone, also by `kill -9`.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    guards: Vec<Option<Child>>,
    jars: Jars,
    link: Option<Link>,
    folder: TempDir,
}

impl Cluster {
    /// Starts a cluster and waits until all of it serves: some seconds, and at the very first time as long as Maven
    /// takes. Blocks.
    pub fn start(options: &Options) -> Result<Cluster, Error> {
        options.check()?;
        let jars = Jars::resolve(&options.version)?;
        let mut started = Self::try_start(options, &jars);
        for _ in 1..STARTS_MAX {
            match &started {
                Err(Error::Ended { tail, .. }) if tail.contains("Address already in use") => {
                    started = Self::try_start(options, &jars);
                }
                _ => break,
            }
        }
        started
    }

    fn try_start(options: &Options, jars: &Jars) -> Result<Cluster, Error> {
        let folder = tempfile::Builder::new().prefix("kafka-dev-").tempdir().context(|| "making a folder".into())?;
        let nodes = lay_out(folder.path(), options)?;
        if options.secured {
            secured::make_keys(&secured::folder(&nodes), jars)?;
        }
        for node in &nodes {
            node.prepare(&nodes, options)?;
            node.format(jars)?;
        }
        let fronts: Vec<(u16, u16)> = nodes.iter().filter_map(|node| node.lossy).collect();
        let link = if options.lossy { Some(Link::open(&fronts)?) } else { None };
        let guards = nodes.iter().map(|_| None).collect();
        let mut cluster = Cluster { nodes, guards, jars: jars.clone(), link, folder };
        // All at once: the first to start waits for a majority.
        for place in 0..cluster.nodes.len() {
            cluster.guards[place] = Some(cluster.nodes[place].start_guarded(jars, true)?);
        }
        for place in 0..cluster.nodes.len() {
            cluster.await_ready(place)?;
        }
        Ok(cluster)
    }

    fn await_ready(&mut self, place: usize) -> Result<(), Error> {
        match &mut self.guards[place] {
            Some(guard) => self.nodes[place].await_ready(guard),
            None => Ok(()),
        }
    }

    /// `host:port` of every node, with commas between.
    pub fn bootstrap(&self) -> String {
        bootstrap(&self.nodes)
    }

    /// The same over a link that can lose answers; `None` unless [`Options::lossy`].
    pub fn lossy_bootstrap(&self) -> Option<String> {
        let front = |node: &Node| Some(format!("{}:{}", Ipv4Addr::LOCALHOST, node.lossy?.0));
        let fronts: Option<Vec<String>> = self.nodes.iter().map(front).collect();
        fronts.map(|fronts| fronts.join(","))
    }

    /// What that link loses next: so many answers of brokers, each with its connection, after their requests were
    /// applied.
    pub fn losses(&self) -> Option<Losses> {
        self.link.as_ref().map(Link::losses)
    }

    /// The addresses behind `entrance`; `None` unless [`Options::secured`].
    pub fn secured_bootstrap(&self, entrance: Entrance) -> Option<String> {
        secured::bootstrap(&self.nodes, entrance)
    }

    /// The certificate that signed those of the nodes, a PEM file; there only with [`Options::secured`].
    pub fn authority(&self) -> PathBuf {
        secured::folder(&self.nodes).join(secured::AUTHORITY)
    }

    /// The certificate of another authority, which signed none of them.
    pub fn foreign_authority(&self) -> PathBuf {
        secured::folder(&self.nodes).join(secured::FOREIGN_AUTHORITY)
    }

    /// Gives `user` rights that it did not have.
    pub fn grant(&self, user: &str, rights: &[Right<'_>]) -> Result<(), Error> {
        secured::grant(&self.nodes[0].address(), user, rights)
    }

    /// The numbers of its nodes, from 1.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.nodes.len() as u32
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether the process of `node` is there.
    pub fn is_up(&mut self, node: u32) -> bool {
        self.place(node).is_ok_and(|place| is_up(&mut self.guards[place]))
    }

    fn place(&self, node: u32) -> Result<usize, Error> {
        let place = self.nodes.iter().position(|one| one.id == node);
        place.ok_or_else(|| Error::Refused(format!("there is no node {node}; nodes are 1 to {}", self.nodes.len())))
    }

    /// Kills `node` at once (SIGKILL). A node that is down stays so.
    pub fn kill(&mut self, node: u32) -> Result<(), Error> {
        let place = self.place(node)?;
        end(&mut self.guards[place], "KILL");
        Ok(())
    }

    /// Stops `node` with a goodbye (SIGTERM). A node that is down stays so.
    pub fn stop(&mut self, node: u32) -> Result<(), Error> {
        let place = self.place(node)?;
        end(&mut self.guards[place], "TERM");
        Ok(())
    }

    /// Starts `node` on the data that it left, and waits until it serves.
    pub fn restart(&mut self, node: u32) -> Result<(), Error> {
        let place = self.place(node)?;
        if is_up(&mut self.guards[place]) {
            return Err(Error::Refused(format!("node {node} is up; kill or stop it first")));
        }
        self.guards[place] = Some(self.nodes[place].start_guarded(&self.jars, true)?);
        self.await_ready(place)
    }

    /// Freezes `node` as it stands (SIGSTOP).
    pub fn freeze(&mut self, node: u32) -> Result<(), Error> {
        let place = self.place(node)?;
        tell(&mut self.guards[place], "STOP");
        Ok(())
    }

    /// Lets a frozen `node` go on (SIGCONT).
    pub fn thaw(&mut self, node: u32) -> Result<(), Error> {
        let place = self.place(node)?;
        tell(&mut self.guards[place], "CONT");
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Nobody reads the data again, so there is nothing to be said goodbye for. All first, then each.
        self.guards.iter_mut().for_each(|guard| tell(guard, "KILL"));
        self.guards.iter_mut().for_each(|guard| end(guard, "KILL"));
    }
}

/// The nodes of a cluster in `folder`, on free ports.
pub(crate) fn lay_out(folder: &Path, options: &Options) -> Result<Vec<Node>, Error> {
    let (lossy, secured) = (if options.lossy { 2 } else { 0 }, if options.secured { 3 } else { 0 });
    let each = 2 + lossy + secured;
    let found = ports::free(each * options.nodes as usize, options.first_port)?;
    let node = |(place, ports): (usize, &[u16])| {
        let id = place as u32 + 1;
        let lossy = options.lossy.then(|| (ports[2], ports[3]));
        let secured = Ports::of(&ports[2 + if lossy.is_some() { 2 } else { 0 }..]);
        let folder = folder.join(format!("node-{id}"));
        Node { id, port: ports[0], controller_port: ports[1], lossy, secured, folder }
    };
    Ok(found.chunks(each).enumerate().map(node).collect())
}

pub(crate) fn bootstrap(nodes: &[Node]) -> String {
    nodes.iter().map(Node::address).collect::<Vec<_>>().join(",")
}

fn is_up(guard: &mut Option<Child>) -> bool {
    guard.as_mut().is_some_and(|guard| matches!(guard.try_wait(), Ok(None)))
}

/// Has the guard send `signal` to its server.
fn tell(guard: &mut Option<Child>, signal: &str) {
    if let Some(pipe) = guard.as_mut().and_then(|guard| guard.stdin.as_mut()) {
        // A guard that is gone has nobody to tell.
        let _ = pipe.write_all(format!("{signal}\n").as_bytes());
    }
}

/// Ends a server by `signal`, and by force when that takes too long.
fn end(guard: &mut Option<Child>, signal: &str) {
    tell(guard, signal);
    let Some(mut process) = guard.take() else { return };
    if wait::until(STOP_LIMIT, || process.try_wait().ok().flatten()).is_none() {
        // The pipe closes, and the guard kills by itself.
        drop(process.stdin.take());
        let _ = wait::until(STOP_LIMIT, || process.try_wait().ok().flatten());
    }
}
