//! A broker starts, serves, and is never left behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use seriatim_kafka_dev::{Cluster, Options, testing};

/// Whether a Kafka answers at `address`: it is asked for its API versions (request 18, version 0).
fn serves(address: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(&[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff])?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        // After the length: the same correlation number, and no error.
        Ok(answer[4..] == [0, 0, 0, 7, 0, 0])
    };
    ask().unwrap_or(false)
}

fn all_serve(bootstrap: &str) -> bool {
    bootstrap.split(',').all(serves)
}

/// Whether the command line of any process names `folder`.
fn is_named_by_a_process(folder: &Path) -> bool {
    let output = Command::new("ps").args(["-e", "-ww", "-o", "command="]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).contains(&*folder.display().to_string())
}

/// Waits up to 5 s.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..50 {
        if holds() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    panic!("not in 5 s: {what}");
}

#[test]
fn a_node_is_killed_restarted_and_gone_with_a_panic() {
    let Some(mut cluster) = testing::cluster(&Options::default()) else { return };
    let (address, folder) = (cluster.bootstrap(), cluster.folder().to_owned());
    assert!(serves(&address));
    cluster.kill(1).unwrap();
    assert!(!serves(&address) && !cluster.is_up(1));
    cluster.restart(1).unwrap();
    assert!(serves(&address) && cluster.is_up(1));
    assert!(cluster.restart(1).unwrap_err().to_string().contains("kill or stop it first"));
    assert!(cluster.kill(2).unwrap_err().to_string().contains("no node 2"));
    cluster.stop(1).unwrap();
    assert!(!serves(&address));
    cluster.restart(1).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _held = cluster;
        panic!("as a test does");
    }));
    assert!(panicked.is_err());
    assert!(!serves(&address) && !folder.exists());
}

#[test]
fn three_nodes_survive_the_loss_of_one_and_take_it_back() {
    let options = Options { nodes: 3, ..Options::default() };
    let Some(mut cluster) = testing::cluster(&options) else { return };
    assert!(all_serve(&cluster.bootstrap()));
    cluster.kill(2).unwrap();
    assert_eq!(cluster.nodes().map(|node| cluster.is_up(node)).collect::<Vec<_>>(), [true, false, true]);
    cluster.restart(2).unwrap();
    assert!(all_serve(&cluster.bootstrap()));
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kafka-dev"));
    command.stdin(Stdio::null());
    command
}

#[test]
fn a_server_does_not_outlive_a_process_that_is_killed() {
    if testing::broker().is_none() {
        return;
    }
    let mut run = command().arg("run").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut address = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut address).unwrap();
    let mut words = String::new();
    BufReader::new(run.stderr.take().unwrap()).read_line(&mut words).unwrap();
    let folder = words.strip_prefix("in ").and_then(|rest| rest.split(';').next()).map(PathBuf::from).unwrap();
    assert!(serves(address.trim()) && folder.is_dir() && is_named_by_a_process(&folder), "{words}");
    // SIGKILL: nothing in that process runs any more.
    run.kill().unwrap();
    run.wait().unwrap();
    eventually("the server ends", || !is_named_by_a_process(&folder));
    assert!(!serves(address.trim()));
    eventually("its folder goes", || !folder.exists());
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_command_keeps_a_cluster_between_commands() {
    if testing::broker().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("deeper/one");
    let tell = |words: &[&str]| {
        let output = command().args(words).arg("--dir").arg(&place).output().unwrap();
        (output.status.code(), said(&output))
    };
    assert_eq!(tell(&["stop"]), (Some(0), "nothing was up\n".into()));
    assert_eq!(tell(&["status"]).0, Some(1));
    let (code, address) = tell(&["start", "--port", "21000"]);
    assert!(code == Some(0) && serves(address.trim()), "{address}");
    assert_eq!(tell(&["status"]).0, Some(0));
    assert_eq!(tell(&["start"]).1, address, "what is up stays");
    let (code, words) = tell(&["start", "--nodes", "3"]);
    assert!(code == Some(2) && words.contains("wipe it first"), "{words}");
    assert_eq!(tell(&["kill"]).1, "killed node 1\n");
    assert!(!serves(address.trim()) && tell(&["status"]).1.contains("down"));
    assert_eq!(tell(&["start"]).1, address, "on the ports that it had");
    assert!(serves(address.trim()));
    assert_eq!(tell(&["stop"]).1, "stopped 1 node(s)\n");
    assert!(!serves(address.trim()));
    assert_eq!(tell(&["wipe"]).1, "wiped\n");
    assert!(!place.exists());
    assert_eq!(tell(&["wipe"]).1, "there was no cluster\n");
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("precious"), "x").unwrap();
    let output = command().args(["wipe", "--dir"]).arg(folder.path()).output().unwrap();
    assert_eq!(said(&output), "there was no cluster\n");
    assert!(folder.path().join("precious").exists());
}

/// The folder of the Java on the PATH.
fn java_home() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let java = std::env::split_paths(&folders).map(|folder| folder.join("java")).find(|path| path.exists())?;
    java.canonicalize().ok()?.parent()?.parent().map(Path::to_owned)
}

#[test]
fn what_is_missing_is_named_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let start = |command: &mut Command| said(&command.args(["start", "--dir"]).arg(folder.path()).output().unwrap());
    let words = start(command().env("JAVA_HOME", folder.path()));
    assert!(words.contains("needs Java 17") && words.contains("SERIATIM_KAFKA"), "{words}");
    if let Some(home) = java_home() {
        let cache = folder.path().join("cache");
        let mut bare = command();
        bare.env("PATH", "").env("JAVA_HOME", home).env("SERIATIM_KAFKA_DEV_CACHE", cache);
        let words = start(&mut bare);
        assert!(words.contains("there is no `mvn`") && words.contains("apt install maven"), "{words}");
    }
}

#[test]
fn a_version_that_there_is_not_is_an_error_in_words() {
    if testing::broker().is_none() {
        return;
    }
    let options = Options { version: "4.99.9".into(), ..Options::default() };
    let error = Cluster::start(&options).unwrap_err().to_string();
    assert!(error.contains("is there such a version") && error.contains("4.99.9"), "{error}");
}

/// Run as it stands, and by the next test in another environment.
#[test]
fn asks_for_a_broker() {
    if let Some(bootstrap) = testing::broker() {
        assert!(all_serve(bootstrap));
        assert_eq!(testing::broker(), Some(bootstrap), "all share it");
    }
}

#[test]
fn a_test_without_a_broker_is_skipped_in_words_or_fails() {
    let folder = tempfile::tempdir().unwrap();
    let run = |variables: &[(&str, &str)]| {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "asks_for_a_broker"]).env("JAVA_HOME", folder.path());
        test.env_remove(testing::REQUIRE_VARIABLE).env_remove(testing::BROKER_VARIABLE);
        let output = test.envs(variables.iter().copied()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), errors, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (passed, errors, _) = run(&[]);
    assert!(passed && errors.starts_with("skipped asks_for_a_broker: a development Kafka needs Java 17"), "{errors}");
    let (passed, _, out) = run(&[(testing::REQUIRE_VARIABLE, "1")]);
    assert!(!passed && out.contains("SERIATIM_REQUIRE_REAL is 1, and a development Kafka needs Java"), "{out}");
    let (passed, _, out) = run(&[(testing::BROKER_VARIABLE, "127.0.0.1:1")]);
    assert!(!passed && out.contains("nobody listens on SERIATIM_KAFKA=127.0.0.1:1"), "{out}");
    if let Some(bootstrap) = testing::broker() {
        let (passed, errors, _) = run(&[(testing::BROKER_VARIABLE, bootstrap)]);
        assert!(passed && errors.is_empty(), "{errors}");
    }
}
