//! What can go wrong with a development broker, and the next step.

use std::path::{Path, PathBuf};

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No Java, or one that is too old.
    #[error(
        "a development Kafka needs Java {at_least} or later, and {found}; install one (Debian: apt install \
         openjdk-17-jre-headless) or point JAVA_HOME at it; or set SERIATIM_KAFKA=host:port to use a broker that is \
         there already",
        at_least = crate::jars::JAVA_AT_LEAST
    )]
    Java {
        /// What was found instead.
        found: String,
    },
    /// No Maven, and the jars are not there yet.
    #[error(
        "the jars of Kafka {version} are fetched with Maven, and there is no `mvn` on the PATH; install it (Debian: apt \
         install maven); or set SERIATIM_KAFKA=host:port to use a broker that is there already"
    )]
    Maven {
        /// The Kafka that was asked for.
        version: String,
    },
    /// Maven could not bring the jars.
    #[error(
        "Maven could not bring the jars of Kafka {version}; is there such a version, and can Maven Central be reached? \
         Its last words:\n{tail}"
    )]
    Resolve {
        /// The Kafka that was asked for.
        version: String,
        /// The end of its output.
        tail: String,
    },
    /// A data folder could not be formatted.
    #[error("formatting the data folder of node {node} failed:\n{tail}")]
    Format {
        /// The node.
        node: u32,
        /// The end of the tool's output.
        tail: String,
    },
    /// Keys and certificates could not be made.
    #[error("making keys and certificates with `{keytool}` failed; it comes with Java. Its last words:\n{tail}", keytool = keytool.display())]
    Keys {
        /// The tool.
        keytool: PathBuf,
        /// The end of its output.
        tail: String,
    },
    /// A node ended while it was awaited.
    #[error("node {node} ended instead of starting; the end of {log}:\n{tail}", log = log.display())]
    Ended {
        /// The node.
        node: u32,
        /// Its log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// A node did not become ready in time.
    #[error("node {node} was not ready after {seconds} s; the end of {log}:\n{tail}", log = log.display())]
    NotReady {
        /// The node.
        node: u32,
        /// How long it was awaited.
        seconds: u64,
        /// Its log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// No ports are free.
    #[error("no {wanted} free ports on 127.0.0.1 from {from} up; stop what listens there")]
    Ports {
        /// How many were wanted.
        wanted: usize,
        /// Where the search began.
        from: u16,
    },
    /// Something that this cluster cannot do.
    #[error("{0}")]
    Refused(String),
    /// The operating system said no.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: String,
        /// Its words.
        source: std::io::Error,
    },
}

/// Adds what was being done to an error of the operating system.
pub(crate) trait Context<T> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, context: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Io { context: context(), source })
    }
}

/// The last lines of the first of `files` that holds any.
pub(crate) fn tail(files: &[&Path]) -> String {
    const LINES: usize = 25;
    for file in files {
        let text = std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        if !lines.is_empty() {
            return lines[lines.len().saturating_sub(LINES)..].join("\n");
        }
    }
    "(nothing was printed)".into()
}
