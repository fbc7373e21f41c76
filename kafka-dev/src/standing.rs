//! A cluster that stays between commands: its folder says what there is, `pid` files who runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{bootstrap, lay_out};
use crate::error::{Context, Error};
use crate::jars::Jars;
use crate::node::{Node, STOP_LIMIT, signal};
use crate::secured::{self, Entrance, Ports};
use crate::{Options, wait};

const DESCRIPTION: &str = "cluster";
/// In a description: its nodes have the listeners of [`secured`].
const SECURED: &str = "secured";

/// A cluster in a folder of the user's.
#[derive(Debug)]
pub struct Standing {
    folder: PathBuf,
}

/// A node of it as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its number, from 1.
    pub node: u32,
    /// Where clients reach it.
    pub address: String,
    /// Its process, when there is one.
    pub pid: Option<u32>,
    /// Its log.
    pub log: PathBuf,
}

/// What was written down when it was made.
struct Description {
    version: String,
    nodes: Vec<Node>,
}

impl Standing {
    /// The cluster in `folder`, which need not be there yet.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Standing {
        Standing { folder: folder.into() }
    }

    /// Where it is when no folder is named: in the target folder of the workspace.
    pub fn default_folder() -> PathBuf {
        crate::jars::cache().join("cluster")
    }

    fn describe(&self) -> Result<Option<Description>, Error> {
        let path = self.folder.join(DESCRIPTION);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { context: format!("reading {}", path.display()), source }),
        };
        // As the command lines of its servers have it.
        let folder = self.folder.canonicalize().context(|| format!("finding {}", self.folder.display()))?;
        let read = || {
            let mut words = text.split_whitespace();
            let version = words.next()?.to_owned();
            let mut words = words.peekable();
            let each = if words.next_if_eq(&SECURED).is_some() { 5 } else { 2 };
            let ports: Vec<u16> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
            let node = |(place, ports): (usize, &[u16])| {
                let id = place as u32 + 1;
                Node {
                    id,
                    port: ports[0],
                    controller_port: ports[1],
                    lossy: None,
                    secured: Ports::of(&ports[2..]),
                    folder: folder.join(format!("node-{id}")),
                }
            };
            let is_whole = !ports.is_empty() && ports.len().is_multiple_of(each);
            is_whole.then(|| Description { version, nodes: ports.chunks(each).enumerate().map(node).collect() })
        };
        let unread = || Error::Refused(format!("{} is not what this command wrote; wipe it", path.display()));
        read().map(Some).ok_or_else(unread)
    }

    fn make(&self, options: &Options) -> Result<Description, Error> {
        fs::create_dir_all(&self.folder).context(|| format!("making {}", self.folder.display()))?;
        let folder = self.folder.canonicalize().context(|| format!("finding {}", self.folder.display()))?;
        let nodes = lay_out(&folder, options)?;
        let mut words = vec![options.version.clone()];
        words.extend(options.secured.then(|| SECURED.to_owned()));
        for node in &nodes {
            let secured = node.secured.map(|ports| ports.all()).unwrap_or_default();
            words.extend([node.port, node.controller_port].into_iter().chain(secured).map(|port| port.to_string()));
        }
        let path = self.folder.join(DESCRIPTION);
        let text = format!("{}\n", words.join(" "));
        fs::write(&path, text).context(|| format!("writing {}", path.display()))?;
        Ok(Description { version: options.version.clone(), nodes })
    }

    /// Starts what is not up, and waits until it serves. Gives the bootstrap addresses. `nodes` and `version` must be
    /// those that the cluster was made with, where given; with `secured` it must have been made so.
    pub fn start(
        &self,
        nodes: Option<u32>,
        version: Option<&str>,
        first_port: u16,
        secured: bool,
    ) -> Result<String, Error> {
        let description = match self.describe()? {
            Some(found) => {
                let other = nodes.is_some_and(|nodes| nodes as usize != found.nodes.len())
                    || version.is_some_and(|version| version != found.version)
                    || secured && found.nodes.iter().any(|node| node.secured.is_none());
                if other {
                    let (count, version) = (found.nodes.len(), found.version);
                    let place = self.folder.display();
                    let how = if found.nodes.iter().any(|node| node.secured.is_some()) { "secured" } else { "plain" };
                    return Err(Error::Refused(format!(
                        "{place} holds {count} {how} node(s) of Kafka {version}; wipe it first, or take another --dir"
                    )));
                }
                found
            }
            None => {
                let base = Options::default();
                let version = version.map_or(base.version, str::to_owned);
                let (nodes, first_port) = (nodes.unwrap_or(1), Some(first_port));
                let options = Options { nodes, version, first_port, secured, ..base };
                options.check()?;
                Jars::resolve(&options.version)?;
                self.make(&options)?
            }
        };
        let jars = Jars::resolve(&description.version)?;
        if description.nodes.iter().any(|node| node.secured.is_some()) {
            secured::make_keys(&secured::folder(&description.nodes), &jars)?;
        }
        let mut started = Vec::new();
        for node in description.nodes.iter().filter(|node| pid(node).is_none()) {
            node.prepare(&description.nodes, &Options::default())?;
            node.format(&jars)?;
            let process = node.start_detached(&jars)?;
            let path = pid_path(node);
            fs::write(&path, process.id().to_string()).context(|| format!("writing {}", path.display()))?;
            started.push((node, process));
        }
        for (node, process) in &mut started {
            node.await_ready(process)?;
        }
        Ok(bootstrap(&description.nodes))
    }

    /// How clients reach it by each of the listeners with TLS and SASL; empty without them.
    pub fn entrances(&self) -> Result<Vec<(Entrance, String)>, Error> {
        let nodes = self.describe()?.map(|found| found.nodes).unwrap_or_default();
        let address = |entrance: Entrance| Some((entrance, secured::bootstrap(&nodes, entrance)?));
        Ok(if nodes.is_empty() { Vec::new() } else { Entrance::ALL.into_iter().filter_map(address).collect() })
    }

    /// The certificate that signed those of its nodes, where it has listeners with TLS.
    pub fn authority(&self) -> Result<Option<PathBuf>, Error> {
        let nodes = self.describe()?.map(|found| found.nodes).unwrap_or_default();
        let has = nodes.iter().any(|node| node.secured.is_some());
        Ok(has.then(|| secured::folder(&nodes).join(secured::AUTHORITY)))
    }

    /// Gives one of [`secured::USERS`] rights that it did not have.
    pub fn grant(&self, user: &str, rights: &[secured::Right<'_>]) -> Result<(), Error> {
        let nodes = self.describe()?.map(|found| found.nodes).unwrap_or_default();
        match nodes.iter().find(|node| pid(node).is_some()) {
            Some(node) => secured::grant(&node.address(), user, rights),
            None => Err(Error::Refused(format!("no node of {} is up; start it first", self.folder.display()))),
        }
    }

    /// Its nodes; none when there is no cluster.
    pub fn status(&self) -> Result<Vec<NodeStatus>, Error> {
        let status =
            |node: &Node| NodeStatus { node: node.id, address: node.address(), pid: pid(node), log: node.log() };
        Ok(self.describe()?.map(|found| found.nodes.iter().map(status).collect()).unwrap_or_default())
    }

    /// Kills one node at once (SIGKILL). Whether it was up.
    pub fn kill(&self, node: u32) -> Result<bool, Error> {
        let nodes = self.describe()?.map(|found| found.nodes).unwrap_or_default();
        let count = nodes.len();
        let Some(node) = nodes.into_iter().find(|one| one.id == node) else {
            return Err(Error::Refused(format!("there is no node {node}; {} has {count}", self.folder.display())));
        };
        let Some(pid) = pid(&node) else { return Ok(false) };
        signal(pid, "KILL");
        Ok(await_end(&node))
    }

    /// Stops all nodes, with a goodbye while they take it. How many were up.
    pub fn stop(&self) -> Result<usize, Error> {
        let nodes = self.describe()?.map(|found| found.nodes).unwrap_or_default();
        let up: Vec<(Node, u32)> = nodes.into_iter().filter_map(|node| pid(&node).map(|pid| (node, pid))).collect();
        up.iter().for_each(|(_, pid)| signal(*pid, "TERM"));
        for (node, process) in &up {
            // One of three may wait for a majority that is gone.
            if !await_end(node) && pid(node) == Some(*process) {
                signal(*process, "KILL");
                await_end(node);
            }
        }
        Ok(up.len())
    }

    /// Stops all nodes and removes the folder. Whether there was one.
    pub fn wipe(&self) -> Result<bool, Error> {
        if self.describe()?.is_none() {
            // Not a folder of ours: it may hold anything.
            return Ok(false);
        }
        self.stop()?;
        fs::remove_dir_all(&self.folder).context(|| format!("removing {}", self.folder.display()))?;
        Ok(true)
    }
}

fn pid_path(node: &Node) -> PathBuf {
    node.folder.join("pid")
}

fn await_end(node: &Node) -> bool {
    wait::until(STOP_LIMIT, || pid(node).is_none().then_some(())).is_some()
}

/// The process of `node`. Numbers are given again, so its command line must name the node's own folder.
fn pid(node: &Node) -> Option<u32> {
    let pid: u32 = fs::read_to_string(pid_path(node)).ok()?.trim().parse().ok()?;
    let words = command_line(pid)?;
    words.contains(&*node.folder.join("server.properties").display().to_string()).then_some(pid)
}

fn command_line(pid: u32) -> Option<String> {
    if Path::new("/proc/self/cmdline").exists() {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        return Some(String::from_utf8_lossy(&bytes).into_owned());
    }
    let output = Command::new("ps").args(["-ww", "-o", "command=", "-p", &pid.to_string()]).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}
