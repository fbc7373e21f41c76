//! Java, and the jars of one version of Kafka: fetched once, shared by everything that starts a broker.
//!
//! Architecture invariant: a folder of jars is whole or absent, whoever fetches at the same time and however it ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Context, Error, tail};
use crate::{node, wait};

/// The oldest Java that Kafka 4 runs on.
pub(crate) const JAVA_AT_LEAST: u32 = 17;

const MAVEN_LIMIT: Duration = Duration::from_secs(600);
const ARCHIVE: &str = "broker.jsa";

/// A Java and the jars of a Kafka.
#[derive(Clone, Debug)]
pub(crate) struct Jars {
    java: PathBuf,
    folder: PathBuf,
}

/// The Java to run, checked.
pub(crate) fn find_java() -> Result<PathBuf, Error> {
    let java = match std::env::var_os("JAVA_HOME") {
        Some(home) => Path::new(&home).join("bin/java"),
        None => PathBuf::from("java"),
    };
    let Ok(output) = Command::new(&java).arg("-version").stdin(Stdio::null()).output() else {
        return Err(Error::Java { found: format!("there is no `{}`", java.display()) });
    };
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    match major(&words) {
        Some(version) if version >= JAVA_AT_LEAST => Ok(java),
        Some(version) => Err(Error::Java { found: format!("`{}` is Java {version}", java.display()) }),
        None => Err(Error::Java { found: format!("`{}` does not tell its version: {words}", java.display()) }),
    }
}

/// The version in what `java -version` prints: `"17.0.15"`, or `"1.8.0_402"` for 8.
fn major(words: &str) -> Option<u32> {
    let mut numbers = words.split('"').nth(1)?.split(['.', '-', '_', '+']);
    match numbers.next()?.parse().ok()? {
        1 => numbers.next()?.parse().ok(),
        version => Some(version),
    }
}

/// Where jars are kept: `SERIATIM_KAFKA_DEV_CACHE`, or `kafka-dev` in the target folder of the workspace.
pub(crate) fn cache() -> PathBuf {
    if let Some(folder) = std::env::var_os("SERIATIM_KAFKA_DEV_CACHE") {
        return folder.into();
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let target = target.unwrap_or_else(|| workspace.join("target"));
    target.join("kafka-dev")
}

impl Jars {
    /// The jars of Kafka `version`, fetched when they are not there.
    pub(crate) fn resolve(version: &str) -> Result<Jars, Error> {
        if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)) {
            return Err(Error::Refused(format!("`{version}` is no version of Kafka; take one such as 4.3.1")));
        }
        let java = find_java()?;
        let cache = cache();
        fs::create_dir_all(&cache).context(|| format!("making {}", cache.display()))?;
        let cache = cache.canonicalize().context(|| format!("finding {}", cache.display()))?;
        let path = cache.join("lock");
        let lock = File::create(&path).context(|| format!("opening {}", path.display()))?;
        // Others wait until the first has fetched. The system lets go of it when this process ends.
        lock.lock().context(|| format!("waiting for {}", path.display()))?;
        let jars = Jars { java, folder: cache.join(format!("lib-{version}")) };
        if !jars.folder.is_dir() {
            fetch(version, &jars.folder)?;
        }
        let tried = jars.folder.join("archive-tried");
        if !tried.exists() {
            File::create(&tried).context(|| format!("making {}", tried.display()))?;
            node::train(&jars);
        }
        Ok(jars)
    }

    /// Java with the classes of Kafka, for a main class and its arguments.
    pub(crate) fn command(&self, heap: &str) -> Result<Command, Error> {
        let mut command = Command::new(&self.java);
        command.args([heap, "-XX:+UseSerialGC", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]);
        command.args(["-Djava.awt.headless=true", "-Dlog4j2.disableJmx=true"]);
        command.arg("-cp").arg(self.class_path()?);
        Ok(command)
    }

    /// The `keytool` of the same Java.
    pub(crate) fn keytool(&self) -> PathBuf {
        self.java.with_file_name("keytool")
    }

    /// All jars in order: an archive of classes holds for the very path that it was made with.
    fn class_path(&self) -> Result<String, Error> {
        let entries = fs::read_dir(&self.folder).context(|| format!("reading {}", self.folder.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path().display().to_string()));
        let mut jars: Vec<String> = paths.filter(|path| path.ends_with(".jar")).collect();
        jars.sort();
        Ok(jars.join(":"))
    }

    /// The classes as a broker had them once loaded, to start from; it may not be there, and need not.
    pub(crate) fn archive(&self) -> PathBuf {
        self.folder.join(ARCHIVE)
    }
}

/// The log4j that Kafka `version` was built with.
fn log4j(version: &str) -> &'static str {
    if version.starts_with("4.0.") || version.starts_with("4.1.") { "2.24.3" } else { "2.25.4" }
}

/// Copies the jars of Kafka `version` to `folder`, which is not there before.
fn fetch(version: &str, folder: &Path) -> Result<(), Error> {
    let part = folder.with_extension("part");
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part).context(|| format!("making {}", part.display()))?;
    let log = part.join("maven.log");
    let output = File::create(&log).context(|| format!("making {}", log.display()))?;
    let errors = output.try_clone().context(|| format!("opening {}", log.display()))?;
    let pom = Path::new(env!("CARGO_MANIFEST_DIR")).join("pom.xml");
    let spawned = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(pom)
        .args(["dependency:copy-dependencies", "-DincludeScope=runtime"])
        .arg(format!("-Dkafka.version={version}"))
        .arg(format!("-Dlog4j.version={}", log4j(version)))
        .arg(format!("-DoutputDirectory={}", part.display()))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn();
    let Ok(mut maven) = spawned else { return Err(Error::Maven { version: version.into() }) };
    let ended = wait::until(MAVEN_LIMIT, || maven.try_wait().ok().flatten());
    if !ended.is_some_and(|status| status.success()) {
        let _ = maven.kill();
        let _ = maven.wait();
        let tail = tail(&[&log]);
        let _ = fs::remove_dir_all(&part);
        return Err(Error::Resolve { version: version.into(), tail });
    }
    fs::rename(&part, folder).context(|| format!("moving {} to {}", part.display(), folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_java_is_read_from_its_words() {
        for (words, version) in [
            ("openjdk version \"17.0.15\" 2025-04-15", Some(17)),
            ("openjdk version \"21\" 2023-09-19", Some(21)),
            ("openjdk version \"25-ea\" 2025-09-16", Some(25)),
            ("java version \"1.8.0_402\"", Some(8)),
            ("command not found", None),
        ] {
            assert_eq!(major(words), version, "{words}");
        }
    }

    #[test]
    fn a_version_with_a_path_in_it_is_refused() {
        let error = Jars::resolve("../4.3.1").unwrap_err();
        assert!(error.to_string().contains("no version of Kafka"), "{error}");
    }
}
