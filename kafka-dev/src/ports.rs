//! Free ports on loopback.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use crate::error::Error;

/// Below the ports that Linux gives to outgoing connections, so that a node that is down finds its own still free.
const LOWEST: u16 = 20_000;
const HIGHEST: u16 = 32_000;

/// `count` ports that nobody listens on, from `first` up or from a place of chance. Another process may take one before
/// it is used: then the node does not start, and says so.
pub(crate) fn free(count: usize, first: Option<u16>) -> Result<Vec<u16>, Error> {
    let drawn = (RandomState::new().hash_one(std::process::id()) % u64::from(HIGHEST - LOWEST)) as u16;
    let from = first.unwrap_or(LOWEST + drawn);
    let mut held = Vec::new();
    for port in (from..=u16::MAX).take(2_000) {
        // Held until all are found, so that none is found twice.
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|listener| (port, listener)));
        if held.len() == count {
            return Ok(held.into_iter().map(|(port, _)| port).collect());
        }
    }
    Err(Error::Ports { wanted: count, from })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_passed_over() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let found = free(2, Some(port)).unwrap();
        assert!(found.len() == 2 && !found.contains(&port) && found[0] != found[1], "{found:?}");
    }
}
