//! The processes of one arrangement: started, listened to, ended.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::Instant;
use crate::client::pause;
use crate::part::{BEGAN, Role, TOOK, Work};
use crate::site::{Processor, processor_micros};

/// Longest time of one process.
const LIMIT: Duration = Duration::from_secs(150);
/// Longest time that one may take to end.
const END_LIMIT: Duration = Duration::from_secs(20);

/// One process. It ends with its input, and is killed when it does not, or is dropped.
struct Member {
    role: Role,
    child: Child,
}

impl Member {
    fn start(role: Role, work: &Work) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("the program does not know where it lies")?);
        let role_name = clap::ValueEnum::to_possible_value(&role).context("a role has a name")?;
        command.args(["part", role_name.get_name(), "--kafka", &work.kafka, "--name", &work.name]);
        command.args(["--docs", &work.docs.to_string(), "--warm-up", &work.warm_up.to_string()]);
        if let Some(linger) = work.linger {
            command.args(["--linger", &linger.to_string()]);
        }
        if let Some(source) = &work.source {
            command.args(["--source", source]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().with_context(|| format!("starting {role:?}"))?;
        Ok(Member { role, child })
    }

    fn has_failed(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(status)) if !status.success())
    }

    /// Asks it to end, and waits.
    fn end(&mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let started = Instant::now();
        while started.elapsed() < END_LIMIT {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{:?} ended with {status}", self.role),
                None => pause(Duration::from_millis(5)),
            }
        }
        bail!("{:?} did not end within {END_LIMIT:?}", self.role)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // One that has ended is not there to be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one measurement gave.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub docs: usize,
    pub micros: u64,
    /// Processor time of our processes and of the broker.
    pub processor: Processor,
}

impl Sample {
    pub fn rate(&self) -> f64 {
        self.docs as f64 * 1e6 / self.micros.max(1) as f64
    }

    /// Processor time of everybody, microseconds a document.
    pub fn cost(&self) -> f64 {
        (self.processor.clients + self.processor.broker) as f64 / self.docs.max(1) as f64
    }
}

/// Starts `others`, then the process whose clock counts; waits until it is through, and ends everybody.
pub fn perform(clocked: Role, others: &[Role], work: &Work, broker: Option<u32>) -> anyhow::Result<Option<Sample>> {
    let mut crew = Vec::new();
    for role in others {
        crew.push(Member::start(*role, work)?);
    }
    if others.len() > 2 {
        // Several of a kind: let all of them join before documents flow.
        pause(Duration::from_secs(2));
    }
    let mut publisher = Member::start(clocked, work)?;
    let said = listen(&mut publisher)?;
    let pids: Vec<u32> = crew.iter().chain([&publisher]).map(|member| member.child.id()).collect();
    let used = || Processor {
        clients: pids.iter().map(|pid| processor_micros(*pid)).sum(),
        broker: broker.map_or(0, processor_micros),
    };
    let (started, mut before, mut sample) = (Instant::now(), None, None);
    loop {
        match said.recv_timeout(Duration::from_millis(200)) {
            Ok(line) if line == BEGAN => before = Some(used()),
            Ok(line) => {
                let Some(rest) = line.strip_prefix(TOOK) else { continue };
                let mut numbers = rest.split_whitespace().map(str::parse::<u64>);
                let mut number = || numbers.next().context("a number")?.context("a number");
                let (docs, micros) = (number()? as usize, number()?);
                let processor = before.map(|before| used().since(before)).unwrap_or_default();
                sample = Some(Sample { docs, micros, processor });
                // It may have an end of its own, which does not count.
                break;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(failed) = crew.iter_mut().find_map(|member| member.has_failed().then_some(member.role)) {
            bail!("{failed:?} ended while documents flowed");
        }
        if started.elapsed() > LIMIT {
            bail!("{clocked:?} was not through after {LIMIT:?}");
        }
    }
    publisher.end()?;
    for member in &mut crew {
        drop(member.child.stdin.take());
    }
    crew.iter_mut().try_for_each(Member::end)?;
    Ok(sample)
}

/// The lines that a process prints.
fn listen(member: &mut Member) -> anyhow::Result<Receiver<String>> {
    let output = member.child.stdout.take().context("its output is a pipe")?;
    let (sender, lines) = channel();
    std::thread::Builder::new().name("listen".into()).spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(lines)
}
