//! A link to brokers that loses answers: it passes bytes on, and when it is told to, it drops what a broker answers
//! and closes the connection. The request was applied, and the client cannot know.
#![expect(clippy::disallowed_methods, reason = "it stands between real processes, which keep the real time")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::error::{Context, Error};

/// How many of the next answers are lost.
#[derive(Clone, Debug, Default)]
pub struct Losses(Arc<AtomicU64>);

impl Losses {
    /// Loses so many of the next answers, and no more.
    pub fn set(&self, answers: u64) {
        self.0.store(answers, Ordering::SeqCst);
    }

    /// How many are still to be lost.
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn take_one(&self) -> bool {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

/// The link to all nodes of a cluster, until it is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    fronts: Vec<u16>,
    losses: Losses,
    closed: Arc<AtomicBool>,
}

impl Link {
    /// Listens on each front port, and connects whoever comes there to the back port.
    pub(crate) fn open(ports: &[(u16, u16)]) -> Result<Link, Error> {
        let link = Link {
            fronts: ports.iter().map(|ports| ports.0).collect(),
            losses: Losses::default(),
            closed: Arc::default(),
        };
        for (front, back) in ports.iter().copied() {
            let listener =
                TcpListener::bind((Ipv4Addr::LOCALHOST, front)).context(|| format!("listening on {front}"))?;
            let (losses, closed) = (link.losses.clone(), link.closed.clone());
            thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    if closed.load(Ordering::SeqCst) {
                        return;
                    }
                    // A broker that is down: the client finds its connection closed.
                    if let Ok(broker) = TcpStream::connect((Ipv4Addr::LOCALHOST, back)) {
                        join(&client, &broker, &losses);
                    }
                }
            });
        }
        Ok(link)
    }

    pub(crate) fn losses(&self) -> Losses {
        self.losses.clone()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // Who listens looks up at the next client.
        self.fronts.iter().for_each(|front| drop(TcpStream::connect((Ipv4Addr::LOCALHOST, *front))));
    }
}

/// Passes bytes both ways until either side closes.
fn join(client: &TcpStream, broker: &TcpStream, losses: &Losses) {
    let pairs = [(client, broker, None), (broker, client, Some(losses.clone()))];
    for (from, to, losses) in pairs {
        if let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) {
            thread::spawn(move || pass(from, to, losses));
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, losses: Option<Losses>) {
    let _ = to.set_nodelay(true);
    let mut buffer = [0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || losses.as_ref().is_some_and(Losses::take_one) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every byte with the next one.
    fn server() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&[byte[0] + 1]).is_ok() {}
                });
            }
        });
        port
    }

    fn ask(stream: &mut TcpStream, byte: u8) -> Option<u8> {
        let mut answer = [byte];
        stream.write_all(&answer).ok()?;
        stream.read_exact(&mut answer).ok()?;
        Some(answer[0])
    }

    #[test]
    fn an_answer_is_lost_with_its_connection_and_the_next_one_passes() {
        let front = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let link = Link::open(&[(front, server())]).unwrap();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, front)).unwrap();
        let mut stream = connect();
        assert_eq!((ask(&mut stream, 1), ask(&mut stream, 5)), (Some(2), Some(6)));
        link.losses().set(1);
        assert_eq!((ask(&mut stream, 7), link.losses().left()), (None, 0));
        assert_eq!(ask(&mut connect(), 7), Some(8));
    }
}
