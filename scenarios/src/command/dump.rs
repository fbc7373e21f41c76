//! Where `cargo sim run` writes the final index.

use std::io::Write;
use std::path::Path;

use anyhow::bail;

use crate::run::RunReport;

/// Refuses a path that cannot be written after the run, or that would cost the input.
pub(super) fn check(path: &Path, input: &Path) -> anyhow::Result<()> {
    let real = |path: &Path| path.canonicalize().ok();
    if real(path).is_some_and(|dumped| Some(dumped) == real(input)) {
        bail!("--dump would overwrite --input, {}; name another file", path.display());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => bail!("--dump: the folder {} does not exist; make it first", folder.display()),
        None if path.is_dir() => bail!("--dump: {} is a folder; name a file in it", path.display()),
        None => Ok(()),
    }
}

/// Writes the final index as JSONL in id order.
pub(super) fn write(path: &Path, ran: &RunReport) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for document in ran.index.values() {
        writeln!(file, "{document}")?;
    }
    file.flush()
}
