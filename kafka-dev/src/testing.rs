//! What a test asks for: a broker, or a reason to be skipped.
//!
//! Without Java or Maven a test is skipped, and the process's real standard error says so; with
//! `SERIATIM_REQUIRE_REAL=1` it fails instead. `SERIATIM_KAFKA=host:port` uses a broker that is there already.

use std::io::Write as _;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::OnceLock;
use std::time::Duration;

use crate::{Cluster, Error, Options};

/// Uses this broker instead of starting one.
pub const BROKER_VARIABLE: &str = "SERIATIM_KAFKA";
/// With `1`, what would be skipped fails.
pub const REQUIRE_VARIABLE: &str = "SERIATIM_REQUIRE_REAL";

/// The address of a broker that all tests of this binary share, started by the first that asks; it ends with the
/// binary. `None` skips the test.
///
/// ```no_run
/// # fn a_test() {
/// let Some(bootstrap) = seriatim_kafka_dev::testing::broker() else { return };
/// # }
/// ```
///
/// # Panics
/// When there is Java and no broker all the same, when the one that was named cannot be reached, and instead of a skip
/// when `SERIATIM_REQUIRE_REAL` is 1.
pub fn broker() -> Option<&'static str> {
    static SHARED: Shared = OnceLock::new();
    let start = || match named_broker() {
        Some(address) => Ok((address, None)),
        None => Cluster::start(&Options::default()).map(|cluster| (cluster.bootstrap(), Some(cluster))),
    };
    addresses(SHARED.get_or_init(start))
}

/// The addresses of a cluster of three nodes that all tests of this binary share and none may break, as [`broker`];
/// `SERIATIM_KAFKA` is not asked.
///
/// # Panics
/// As [`broker`] does.
pub fn three_brokers() -> Option<&'static str> {
    static SHARED: Shared = OnceLock::new();
    let start = || {
        let cluster = Cluster::start(&Options { nodes: 3, ..Options::default() })?;
        Ok((cluster.bootstrap(), Some(cluster)))
    };
    addresses(SHARED.get_or_init(start))
}

/// A cluster of one node with TLS, SASL, users and rights ([`crate::secured`]) that all tests of this binary share, as
/// [`broker`]; `SERIATIM_KAFKA` is not asked.
///
/// # Panics
/// As [`broker`] does.
pub fn secured() -> Option<&'static Cluster> {
    static SHARED: OnceLock<Result<Cluster, Error>> = OnceLock::new();
    let start = || Cluster::start(&Options { secured: true, ..Options::default() });
    match SHARED.get_or_init(start) {
        Ok(cluster) => Some(cluster),
        Err(error) => skip(error),
    }
}

/// Addresses, and what is behind them. Statics are not dropped: the guards of its servers end it with this process.
type Started = Result<(String, Option<Cluster>), Error>;
type Shared = OnceLock<Started>;

fn addresses(started: &'static Started) -> Option<&'static str> {
    match started {
        Ok((bootstrap, _)) => Some(bootstrap),
        Err(error) => skip(error),
    }
}

/// A cluster of a test's own, to kill nodes of. `None` skips the test, as [`broker`] does; `SERIATIM_KAFKA` is not
/// asked.
///
/// # Panics
/// As [`broker`] does.
pub fn cluster(options: &Options) -> Option<Cluster> {
    Cluster::start(options).map_or_else(|error| skip(&error), Some)
}

/// The broker that `SERIATIM_KAFKA` names, if it names one.
///
/// # Panics
/// When nobody listens there.
pub fn named_broker() -> Option<String> {
    const LIMIT: Duration = Duration::from_secs(5);
    let address = std::env::var(BROKER_VARIABLE).ok()?;
    let listens = |one: &str| {
        let resolved = one.to_socket_addrs().into_iter().flatten();
        resolved.into_iter().any(|place| TcpStream::connect_timeout(&place, LIMIT).is_ok())
    };
    assert!(
        address.split(',').any(listens),
        "nobody listens on {BROKER_VARIABLE}={address}; start a broker there, or unset it to have one started"
    );
    Some(address)
}

/// Skips the test that runs on this thread, for want of Java or Maven.
fn skip<T>(error: &Error) -> Option<T> {
    assert!(matches!(error, Error::Java { .. } | Error::Maven { .. }), "{error}");
    let required = std::env::var(REQUIRE_VARIABLE).is_ok_and(|value| value == "1");
    assert!(!required, "{REQUIRE_VARIABLE} is 1, and {error}");
    let thread = std::thread::current();
    let words = format!("skipped {}: {error}\n", thread.name().unwrap_or("a test"));
    // The handle itself: the harness of tests takes only what the print macros write.
    let _ = std::io::stderr().lock().write_all(words.as_bytes());
    None
}
