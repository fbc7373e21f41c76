//! Listeners with TLS and SASL beside the plain one, users, and rights: what clients meet at a cluster of a company.
//!
//! The plain listener stays, and whoever comes by it may do everything: it is how the cluster is looked after. By the
//! others come [`USERS`], who may do what they were granted ([`crate::Cluster::grant`]), and nothing else. Keys,
//! certificates and passwords are those of a cluster on loopback that lives for a test: nobody must use them elsewhere.

use std::fs;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Context, Error, tail};
use crate::jars::Jars;
use crate::node::{Node, printing_to};
use crate::wait;

/// Users that there are, with SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN alike. None has any rights at first.
pub const USERS: [&str; 4] = ["publisher", "worker", "indexer", "stranger"];

/// The certificate of the authority that signed those of the nodes.
pub(crate) const AUTHORITY: &str = "authority.pem";
/// The certificate of another one.
pub(crate) const FOREIGN_AUTHORITY: &str = "foreign-authority.pem";
const KEYS: &str = "keys.p12";
/// Of key stores that nobody else can read.
const STORE_PASSWORD: &str = "loopback";
const KEYTOOL_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Of the map from listeners to protocols.
pub(crate) const PROTOCOLS: &str = ",TLS:SSL,SASL:SASL_PLAINTEXT,SASLTLS:SASL_SSL";
const MECHANISMS: [&str; 2] = ["SCRAM-SHA-256", "SCRAM-SHA-512"];

/// The password of one of [`USERS`].
pub fn password(user: &str) -> String {
    format!("{user}-secret")
}

/// A listener other than the plain one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entrance {
    /// `security.protocol=ssl`: encrypted, and nobody in particular, who has no rights.
    Tls,
    /// `security.protocol=sasl_plaintext`: a user, not encrypted.
    Sasl,
    /// `security.protocol=sasl_ssl`: both.
    SaslTls,
}

impl Entrance {
    /// All there are.
    pub const ALL: [Entrance; 3] = [Entrance::Tls, Entrance::Sasl, Entrance::SaslTls];

    /// The client property `security.protocol`.
    pub fn protocol(self) -> &'static str {
        match self {
            Entrance::Tls => "ssl",
            Entrance::Sasl => "sasl_plaintext",
            Entrance::SaslTls => "sasl_ssl",
        }
    }
}

/// Something that a user may do, by Kafka's own numbers.
#[derive(Clone, Copy, Debug)]
pub struct Right<'a> {
    resource: i8,
    name: &'a str,
    pattern: i8,
    operation: Operation,
}

/// What rights are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reading records, or being a member of a group.
    Read = 3,
    /// Writing records.
    Write = 4,
    /// Making a topic.
    Create = 5,
    /// Deleting a topic.
    Delete = 6,
    /// Looking it up.
    Describe = 8,
}

const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;

impl<'a> Right<'a> {
    /// `operation` on a topic.
    pub fn topic(operation: Operation, name: &'a str) -> Self {
        Right { resource: 2, name, pattern: LITERAL, operation }
    }

    /// `operation` on a group.
    pub fn group(operation: Operation, name: &'a str) -> Self {
        Right { resource: 3, name, pattern: LITERAL, operation }
    }

    /// The same on all whose names begin so.
    pub fn prefixed(self) -> Self {
        Right { pattern: PREFIXED, ..self }
    }
}

/// Where the listeners of a node are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports([u16; 3]);

impl Ports {
    pub(crate) fn of(ports: &[u16]) -> Option<Ports> {
        Some(Ports(ports.try_into().ok()?))
    }

    pub(crate) fn all(self) -> Vec<u16> {
        self.0.to_vec()
    }

    fn address(self, entrance: Entrance) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.0[entrance as usize])
    }

    /// As `listeners` has them, after others.
    pub(crate) fn listeners(self) -> String {
        let names = [("TLS", Entrance::Tls), ("SASL", Entrance::Sasl), ("SASLTLS", Entrance::SaslTls)];
        names.iter().map(|(name, entrance)| format!(",{name}://{}", self.address(*entrance))).collect()
    }
}

pub(crate) fn bootstrap(nodes: &[Node], entrance: Entrance) -> Option<String> {
    let addresses: Option<Vec<String>> = nodes.iter().map(|node| Some(node.secured?.address(entrance))).collect();
    addresses.map(|addresses| addresses.join(","))
}

/// Where the keys of a cluster are: with its first node, since the folders of nodes go with their processes.
pub(crate) fn folder(nodes: &[Node]) -> PathBuf {
    nodes.first().map(|node| node.folder.join("tls")).unwrap_or_default()
}

/// The broker properties that say all this.
pub(crate) fn properties(folder: &Path) -> Vec<(&'static str, String)> {
    let users: String = USERS.iter().map(|user| format!(" user_{user}=\"{}\"", password(user))).collect();
    let plain = format!("org.apache.kafka.common.security.plain.PlainLoginModule required{users};");
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;".to_owned();
    vec![
        ("ssl.keystore.type", "PKCS12".into()),
        ("ssl.keystore.location", folder.join(KEYS).display().to_string()),
        ("ssl.keystore.password", STORE_PASSWORD.into()),
        ("sasl.enabled.mechanisms", format!("PLAIN,{}", MECHANISMS.join(","))),
        ("listener.name.sasl.plain.sasl.jaas.config", plain.clone()),
        ("listener.name.sasltls.plain.sasl.jaas.config", plain),
        ("listener.name.sasl.scram-sha-256.sasl.jaas.config", scram.clone()),
        ("listener.name.sasl.scram-sha-512.sasl.jaas.config", scram.clone()),
        ("listener.name.sasltls.scram-sha-256.sasl.jaas.config", scram.clone()),
        ("listener.name.sasltls.scram-sha-512.sasl.jaas.config", scram),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer".into()),
        // By listeners without users, everybody is this one.
        ("super.users", "User:ANONYMOUS".into()),
    ]
}

/// Arguments that make the users when the data folder is formatted.
pub(crate) fn scram_users() -> Vec<String> {
    let user = |user: &str, mechanism: &str| {
        ["--add-scram".to_owned(), format!("{mechanism}=[name={user},password={}]", password(user))]
    };
    USERS.iter().flat_map(|name| MECHANISMS.iter().flat_map(move |mechanism| user(name, mechanism))).collect()
}

/// Makes an authority, a certificate of it for 127.0.0.1 and localhost, and another authority, unless they are there.
pub(crate) fn make_keys(folder: &Path, jars: &Jars) -> Result<(), Error> {
    if folder.join(KEYS).exists() {
        return Ok(());
    }
    fs::create_dir_all(folder).context(|| format!("making {}", folder.display()))?;
    let make = "-genkeypair -keyalg EC -groupname secp256r1 -validity 3650";
    let (store, other) = ("-keystore all.p12", "-keystore foreign.p12");
    let authority = "-dname CN=authority -ext bc:c=ca:true -ext ku:c=keyCertSign";
    let node = "-dname CN=node -ext san=ip:127.0.0.1,dns:localhost -signer authority";
    for words in [
        format!("{make} {store} -alias authority {authority}"),
        format!("{make} {other} -alias authority {authority}"),
        format!("{make} {store} -alias node {node}"),
        format!("-exportcert -rfc {store} -alias authority -file {AUTHORITY}"),
        format!("-exportcert -rfc {other} -alias authority -file {FOREIGN_AUTHORITY}"),
    ] {
        keytool(folder, jars, &words)?;
    }
    // Last, and without the authority's key: it says that all is made.
    let copy = format!("-importkeystore -noprompt -srckeystore all.p12 -srcalias node -srcstorepass {STORE_PASSWORD}");
    keytool(folder, jars, &format!("{copy} -keystore {KEYS}"))
}

fn keytool(folder: &Path, jars: &Jars, words: &str) -> Result<(), Error> {
    let (keytool, log) = (jars.keytool(), folder.join("keytool.log"));
    let mut command = Command::new(&keytool);
    command.current_dir(folder).args(["-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"]);
    command.args(words.split(' ')).args(["-storetype", "PKCS12", "-storepass", STORE_PASSWORD]);
    if words.starts_with("-importkeystore") {
        command.args(["-srcstoretype", "PKCS12"]);
    }
    let mut process = printing_to(&mut command, &log)?;
    let ended = wait::until(KEYTOOL_LIMIT, || process.try_wait().ok().flatten());
    if ended.is_some_and(|status| status.success()) {
        return Ok(());
    }
    let _ = process.kill();
    let _ = process.wait();
    Err(Error::Keys { keytool, tail: tail(&[&log]) })
}

/// Asks the node at `address` to let `user` do what `rights` say: a request 30 (`CreateAcls`), version 1.
pub(crate) fn grant(address: &str, user: &str, rights: &[Right<'_>]) -> Result<(), Error> {
    const ALLOW: i8 = 3;
    let mut body = vec![0, 30, 0, 1, 0, 0, 0, 7, 0xff, 0xff];
    body.extend((rights.len() as i32).to_be_bytes());
    for right in rights {
        body.extend(right.resource.to_be_bytes());
        string(&mut body, right.name);
        body.extend(right.pattern.to_be_bytes());
        string(&mut body, &format!("User:{user}"));
        string(&mut body, "*");
        body.extend((right.operation as i8).to_be_bytes());
        body.extend(ALLOW.to_be_bytes());
    }
    let ask = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(&(body.len() as i32).to_be_bytes())?;
        stream.write_all(&body)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut answer = vec![0; u32::from_be_bytes(length).min(1 << 20) as usize];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    };
    let doing = || format!("granting rights to {user} at {address}");
    let answer = ask().context(doing)?;
    match refusal(&answer, rights.len()) {
        None => Ok(()),
        Some(code) => Err(Error::Refused(format!("{}: error {code} of Kafka's protocol", doing()))),
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as i16).to_be_bytes());
    out.extend(text.as_bytes());
}

/// The first error in an answer to as many rights: correlation, throttling, count, then an error and a text for each.
fn refusal(answer: &[u8], rights: usize) -> Option<i16> {
    const UNKNOWN: i16 = -1;
    let mut rest = answer.get(12..).unwrap_or_default();
    for _ in 0..rights {
        let Some(([high, low], after)) = rest.split_first_chunk() else { return Some(UNKNOWN) };
        let code = i16::from_be_bytes([*high, *low]);
        if code != 0 {
            return Some(code);
        }
        let Some((length, after)) = after.split_first_chunk() else { return Some(UNKNOWN) };
        rest = after.get(i16::from_be_bytes(*length).max(0) as usize..).unwrap_or_default();
    }
    None
}
